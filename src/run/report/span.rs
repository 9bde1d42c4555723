//! The spans of nodes, for a subscriber that wants them: of runs, calls, attempts and tools.
//!
//! The fields have the names of OpenTelemetry's conventions, except for the run's id;
//! `tracing-opentelemetry` reads `otel.name`, `otel.kind` and `otel.status_code`. If no subscriber
//! wants a span, none is made, and no node allocates for one.
//!
//! A span closes once: when its node has ended and has no work in flight, or when the node is
//! dropped. The loop of attempts closes the spans of its attempts itself. The subscriber is called
//! without a lock, and a panic of the subscriber is caught.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{StatusCode, Uri};
use tracing::{
    Span,
    field::{Empty, display},
    level_filters::LevelFilter,
};

use super::summary::CallSummary;
use crate::{
    guarded::guarded,
    llm::{GenAiOperation, cut, failure::FailureClass},
    lock::Lock,
    run::{
        id::RunId,
        reason::TerminalReason,
        state::NodeState,
        tree::{End, Node, NodeKind, PendingWakes},
    },
};

/// The place for the span of a node: empty before the span is made, and once it has closed or has
/// moved to another node.
#[derive(Debug, Default)]
pub(in crate::run) struct SpanSlot(Lock<Option<Arc<OpenSpan>>>);

/// The maximum depth of nested spans of sub-agents. A subscriber may close a chain of spans by
/// recursion, and a chain of sub-agents may be deeper than the thread's stack.
const MAX_DEPTH: u8 = 64;

/// The most bytes of the model's name that a span takes from the caller's request.
const MOST_BYTES: usize = 256;

/// A span that has not closed.
#[derive(Debug)]
struct OpenSpan {
    /// The kind of work that the span describes. A run that is one call has the span of a call.
    kind: NodeKind,
    /// The first word of the span's name.
    operation: &'static str,
    span: Span,
    /// The number of spans of runs above that of the nearest run.
    depth: u8,
    /// The run's id in the span; `None` before it is known.
    run: Option<RunId>,
    has_session: bool,
    /// Whether the span describes a request already. Of nested layers that share the span, only the
    /// outermost describes its request.
    is_described: AtomicBool,
    /// Whether the loop of attempts closes the span. Then the end of the node does not.
    is_reported: AtomicBool,
}

/// The name of a span: its operation, and the model, tool or agent if that is known.
struct SpanName<'a>(&'a str, Option<&'a str>);

/// The values that a span gets at the end of its node.
struct SpanEnd {
    /// The class of the failure that ended the node, if the node is an attempt.
    class: Option<FailureClass>,
    summary: CallSummary,
}

/// Whether a subscriber may want a span. The check costs one load, because it stands on the hot
/// path.
#[inline(always)]
pub(crate) fn is_traced() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Makes a span below `$above`, or else below the current span of the thread.
macro_rules! span {
    ($above:expr, $name:literal, $($fields:tt)*) => {
        match $above.as_ref().and_then(|above| above.span.id()) {
            Some(above) => {
                tracing::info_span!(target: "tower_agent", parent: above, $name, $($fields)*)
            }
            None => tracing::info_span!(target: "tower_agent", $name, $($fields)*),
        }
    };
}

/// The spans of a node, and of the call that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Spans<'a>(&'a Node<NodeState>);

impl<'a> Spans<'a> {
    #[inline]
    pub(in crate::run) const fn of(node: &'a Node<NodeState>) -> Self {
        Self(node)
    }

    /// The span of this node, or of the nearest node above it that has one; [`Span::none`] if none
    /// is open.
    pub(in crate::run) fn nearest(self) -> Span {
        let mut span = Span::none();
        if let Some(open) = self.0.nearest_span() {
            guarded(|| span = open.span.clone());
        }
        span
    }

    /// Records the agent's name in the span of the nearest run, if there is one.
    pub(in crate::run) fn name_agent(self, name: &str) {
        let open = self.0.nearest_run().open_span();
        if let Some(open) = open.filter(|open| open.kind == NodeKind::Run) {
            guarded(|| {
                open.span.record("gen_ai.agent.name", name);
                let name = SpanName(open.operation, Some(name));
                open.span.record("otel.name", display(name));
            });
        }
    }

    /// Makes the span of this run, which the program opened. The span stands below that of
    /// `parent`, or else below the current span of the thread.
    #[inline]
    pub(crate) fn trace_run(self, parent: Option<Self>) {
        if is_traced() {
            self.make_run(parent);
        }
    }

    #[cold]
    fn make_run(self, parent: Option<Self>) {
        let above = parent.and_then(|parent| parent.0.nearest_span());
        let above = above.filter(|above| above.depth < MAX_DEPTH);
        let depth = above.as_ref().map_or(0, |above| above.depth + 1);
        // The run may be dropped without an end, so its id stands in the span from the beginning.
        let id = self.0.run_id();
        self.0.make_span(
            (NodeKind::Run, "invoke_agent", depth),
            Some(&id),
            |run, session| {
                span!(
                    above,
                    "invoke_agent",
                    otel.name = "invoke_agent",
                    otel.kind = "internal",
                    otel.status_code = Empty,
                    gen_ai.operation.name = "invoke_agent",
                    gen_ai.agent.name = Empty,
                    gen_ai.conversation.id = session,
                    tower_agent.run.id = run.map(display),
                    error.type = Empty,
                )
            },
        );
    }

    /// Makes the span of this call. The call takes over the span of a call that `found` has, if a
    /// layer further out has taken that node for the call.
    #[cold]
    pub(crate) fn make_call(self, operation: &'static GenAiOperation, found: Option<Self>) {
        let Self(node) = self;
        if let Some(open) = found.and_then(|found| found.0.take_span(NodeKind::Call)) {
            return node.put_span(open);
        }
        let (above, depth) = node.span_above();
        let &GenAiOperation {
            name: operation,
            provider,
        } = operation;
        node.make_span((NodeKind::Call, operation, depth), None, |run, session| {
            span!(
                above,
                "call",
                otel.name = operation,
                otel.kind = "client",
                otel.status_code = Empty,
                gen_ai.operation.name = operation,
                gen_ai.provider.name = provider,
                gen_ai.request.model = Empty,
                gen_ai.response.model = Empty,
                gen_ai.response.finish_reasons = Empty,
                gen_ai.response.time_to_first_chunk = Empty,
                gen_ai.usage.input_tokens = Empty,
                gen_ai.usage.output_tokens = Empty,
                gen_ai.conversation.id = session,
                tower_agent.run.id = run.map(display),
                error.type = Empty,
            )
        });
    }

    /// Records the model that the caller of this node's call asked for, in the span of the call.
    ///
    /// The caller chooses the name, and a collector may refuse a long value: so the name is cut at
    /// [`MOST_BYTES`].
    #[cold]
    pub(crate) fn record_asked_model(self, model: &str) {
        let model = cut(model, MOST_BYTES);
        if let Some(open) = self.open_call_span() {
            guarded(|| {
                open.span.record("gen_ai.request.model", model);
                let name = SpanName(open.operation, Some(model));
                open.span.record("otel.name", display(name));
            });
        }
    }

    /// Records that an answer serves this node's call: the model, and with `has_content` the time
    /// until now as the time to the first content.
    #[cold]
    pub(crate) fn record_served(self, model: Option<&str>, has_content: bool) {
        if let Some(open) = self.open_call_span() {
            guarded(|| {
                open.span.record("gen_ai.response.model", model);
                if has_content {
                    let waited = self.0.elapsed(self.0.now()).as_secs_f64();
                    open.span
                        .record("gen_ai.response.time_to_first_chunk", waited);
                }
            });
        }
    }

    fn open_call_span(self) -> Option<Arc<OpenSpan>> {
        let open = self.0.call_node().open_span();
        open.filter(|open| open.kind == NodeKind::Call)
    }

    /// Makes the span of this tool.
    #[inline]
    pub(crate) fn trace_tool(self, name: &str, call_id: Option<&str>) {
        if is_traced() {
            self.make_tool(name, call_id);
        }
    }

    #[cold]
    fn make_tool(self, name: &str, call_id: Option<&str>) {
        let (above, depth) = self.0.span_above();
        self.0.make_span(
            (NodeKind::Tool, "execute_tool", depth),
            None,
            |run, session| {
                span!(
                    above,
                    "execute_tool",
                    otel.name = %SpanName("execute_tool", Some(name)),
                    otel.kind = "internal",
                    otel.status_code = Empty,
                    gen_ai.operation.name = "execute_tool",
                    gen_ai.tool.name = name,
                    gen_ai.tool.call.id = call_id,
                    gen_ai.conversation.id = session,
                    tower_agent.run.id = run.map(display),
                    error.type = Empty,
                )
            },
        );
    }

    /// Makes the span of this attempt at a model. Returns whether a subscriber wants it.
    ///
    /// The first attempt below another one takes over its span, because both are the same try. With
    /// `is_reported` the end of the node does not close the span: it waits for
    /// [`close_attempt`](Self::close_attempt).
    #[cold]
    pub(crate) fn make_attempt(self, model: Option<&str>, is_reported: bool) -> bool {
        let Self(node) = self;
        let is_attempt = |node: &&Node<NodeState>| node.kind() == NodeKind::Attempt;
        let mut outer = node.ancestors().take_while(is_attempt);
        if let Some(open) = outer.find_map(|outer| outer.take_span(NodeKind::Attempt)) {
            open.is_reported.store(is_reported, Ordering::Release);
            node.put_span(open);
            return true;
        }
        let (above, depth) = node.span_above();
        node.make_span((NodeKind::Attempt, "attempt", depth), None, |_, _| {
            span!(
                above,
                "attempt",
                otel.name = %SpanName("attempt", model),
                otel.kind = "client",
                otel.status_code = Empty,
                gen_ai.request.model = model,
                server.address = Empty,
                server.port = Empty,
                http.request.resend_count = Empty,
                http.response.status_code = Empty,
                error.type = Empty,
            )
        });
        let open = node.open_span();
        if let Some(open) = &open {
            open.is_reported.store(is_reported, Ordering::Release);
        }
        open.is_some()
    }

    /// Describes the request of this attempt in its span: the server, and the number of the try.
    #[cold]
    pub(crate) fn describe_attempt(self, number: u32, uri: &Uri) {
        let open = self.0.open_span();
        let Some(open) = open.filter(|open| !open.is_described.swap(true, Ordering::AcqRel)) else {
            return;
        };
        let port = uri.port_u16().or_else(|| match uri.scheme_str()? {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        });
        let resent = number.saturating_sub(1);
        guarded(|| {
            open.span.record("server.address", uri.host());
            open.span.record("server.port", port.map(i64::from));
            let resent = (resent > 0).then(|| i64::from(resent));
            open.span.record("http.request.resend_count", resent);
        });
    }

    /// Closes the span of this attempt, with the status of its answer and the kind of its failure.
    #[cold]
    pub(crate) fn close_attempt(self, status: Option<StatusCode>, error: Option<&str>) {
        if let Some(open) = self.0.take_span(NodeKind::Attempt) {
            open.close(|open| {
                let status = status.map(|status| i64::from(status.as_u16()));
                open.span.record("http.response.status_code", status);
                open.record_error(error);
            });
        }
    }
}

impl Node<NodeState> {
    fn open_span(&self) -> Option<Arc<OpenSpan>> {
        self.payload.span_slot()?.0.lock().clone()
    }

    /// The open span of this node, or of the nearest node above it that has one.
    fn nearest_span(&self) -> Option<Arc<OpenSpan>> {
        self.path().find_map(Self::open_span)
    }

    /// The nearest open span above this node, and its depth.
    fn span_above(&self) -> (Option<Arc<OpenSpan>>, u8) {
        let above = self.ancestors().find_map(Self::open_span);
        let depth = above.as_ref().map_or(0, |above| above.depth);
        (above, depth)
    }

    /// Makes the span of this node, unless no subscriber wants it. `span` gets the run's id, if it
    /// is known by now, and the session.
    fn make_span(
        &self,
        (kind, operation, depth): (NodeKind, &'static str, u8),
        run: Option<&RunId>,
        span: impl FnOnce(Option<&RunId>, Option<&str>) -> Span,
    ) {
        let identity = self.nearest_run().payload.identity();
        let run = run.or_else(|| Some(&identity?.id));
        let session = identity.and_then(|identity| identity.session.as_deref());
        guarded(|| {
            let span = span(run, session);
            if !span.is_disabled() {
                self.put_span(Arc::new(OpenSpan {
                    kind,
                    operation,
                    span,
                    depth,
                    run: run.cloned(),
                    has_session: session.is_some(),
                    is_described: AtomicBool::new(false),
                    is_reported: AtomicBool::new(false),
                }));
            }
        });
    }

    fn put_span(&self, open: Arc<OpenSpan>) {
        let before = self.payload.make_span_slot().0.lock().replace(open);
        drop(before);
    }

    /// Takes the open span of this kind out of the node.
    fn take_span(&self, kind: NodeKind) -> Option<Arc<OpenSpan>> {
        let mut slot = self.payload.span_slot()?.0.lock();
        slot.take_if(|open| open.kind == kind)
    }

    /// Closes the span of this node, which has ended and has no work. A span that the loop of
    /// attempts closes stays open.
    #[inline]
    pub(in crate::run) fn close_span(&self) {
        if self.payload.span_slot().is_some() {
            self.close_open_span();
        }
    }

    #[cold]
    fn close_open_span(&self) {
        let Some(end) = self.nearest_end() else {
            return;
        };
        let open = self.payload.span_slot().and_then(|slot| {
            let mut slot = slot.0.lock();
            slot.take_if(|open| !open.is_reported.load(Ordering::Acquire))
        });
        if let Some(open) = open {
            let end = SpanEnd::of(self, end);
            open.close(|open| end.record(open));
        }
    }

    /// Closes the span of this run, which has ended, once its waiters have been woken. Does nothing
    /// if the run still has work.
    pub(in crate::run) fn close_idle_span(&self, end: &End, later: &mut PendingWakes<NodeState>) {
        if self.payload.span_slot().is_none() || !self.is_idle() {
            return;
        }
        if let Some(open) = self.take_span(NodeKind::Run) {
            let end = SpanEnd::of(self, end);
            later.defer(Box::new(move || open.close(|open| end.record(open))));
        }
    }
}

impl OpenSpan {
    /// Closes the span, after `record` has completed it.
    fn close(self: Arc<Self>, record: impl FnOnce(&Self)) {
        guarded(|| record(&self));
        guarded(move || drop(self));
    }

    fn record_error(&self, error: Option<&str>) {
        if error.is_some() {
            self.span.record("error.type", error);
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

impl SpanEnd {
    fn of(node: &Node<NodeState>, end: &End) -> Self {
        Self {
            class: end.attempt_failure(),
            summary: CallSummary::of(node, end),
        }
    }

    fn record(&self, open: &OpenSpan) {
        let (span, summary) = (&open.span, &self.summary);
        if open.kind != NodeKind::Attempt && open.run.as_ref() != Some(&summary.run) {
            span.record("tower_agent.run.id", display(&summary.run));
        }
        if !open.has_session {
            span.record("gen_ai.conversation.id", summary.session.as_deref());
        }
        if open.kind == NodeKind::Call {
            let (usage, stop_reason) = (summary.usage, &summary.stop_reason);
            // The numbers are signed, because OpenTelemetry has no unsigned ones.
            let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            let (input, output) = (
                usage.map(|usage| tokens(usage.input_tokens)),
                usage.map(|usage| tokens(usage.output_tokens)),
            );
            span.record("gen_ai.usage.input_tokens", input);
            span.record("gen_ai.usage.output_tokens", output);
            span.record("gen_ai.response.finish_reasons", stop_reason.as_deref());
        }
        open.record_error(match (open.kind, &summary.reason) {
            (_, TerminalReason::Completed) => None,
            (NodeKind::Tool, TerminalReason::Failed(_)) => Some("tool_failed"),
            (NodeKind::Attempt, reason) => {
                let class = self.class.map(FailureClass::as_str);
                Some(class.unwrap_or(reason.as_str()))
            }
            (_, reason) => Some(reason.as_str()),
        });
    }
}

/// A node that is dropped while its span is open closes the span here.
impl Drop for SpanSlot {
    fn drop(&mut self) {
        if let Some(open) = self.0.get_mut().take() {
            guarded(move || drop(open));
        }
    }
}

impl fmt::Display for SpanName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        self.1.map_or(Ok(()), |what| write!(f, " {what}"))
    }
}
