//! One caller's socket: reads events, runs lanes, writes frames, and keeps the time.
//!
//! One task does it all, so nothing is buffered between the lanes and the socket: a caller that does
//! not read stops the reading of the upstreams, and a caller that goes away drops all calls at once.

use std::{
    collections::VecDeque,
    error::Error,
    fmt::Display,
    future::{Future, pending},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code},
};
use futures_util::{
    Sink, StreamExt,
    future::{BoxFuture, select},
    stream::{BoxStream, FuturesUnordered, SelectAll},
};
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tower::ServiceExt;

use super::{
    Bridge, LeaveSignals,
    answer::{AnswerEnd, AnswerStep, steps},
    client_event::{ClientEvent, Create},
    frames::{ErrorFrame, is_without_model, steer_failed, without_model},
    kept::{self, Kept, push_items},
    lanes::{LaneName, Lanes},
    template::Template,
};
use crate::{
    http::{Charge, SocketMeter},
    telemetry::OpenSocket,
};

/// The silences of `keep_alive` after which a caller is gone: one that is busy with what it has read may
/// answer no ping for a while, and the system finds out by itself whether the peer is there.
const SILENCES: u32 = 5;

/// The time after which the sockets to upstreams are closed, if nothing runs.
const UPSTREAM_IDLE: Duration = Duration::from_secs(4 * 60);

/// The time that the caller has to take the last frames and to close.
const CLOSING: Duration = Duration::from_secs(5);

/// The time that the caller has to take the last frames, if nothing can be read from it any more.
const UNREAD: Duration = Duration::from_secs(1);

/// The time that the rest of an answer has, behind its last event. Then it is dropped, which ends its call.
const REST: Duration = Duration::from_millis(250);

/// The frames of its own that a socket holds, and their bytes; with more, it reads no further.
const MOST_FRAMES: usize = 64;
const MOST_IN_FRAMES: usize = 256 * 1024;

/// The bytes of an unfinished message that are not worth counting.
const UNCOUNTED: u64 = 16 * 1024;

/// The steps that the task takes before it lets others run.
const STEPS: usize = 64;

/// A caller's socket.
pub(super) struct CallerSocket {
    socket: WebSocket,
    bridge: Arc<Bridge>,
    template: Template,
    charge: Charge,
    meter: Option<SocketMeter>,
    lanes: Lanes,
    running: SelectAll<BoxStream<'static, (LaneName, AnswerStep)>>,
    /// Answers whose last event the caller has.
    rests: FuturesUnordered<BoxFuture<'static, LaneName>>,
    /// What the socket itself has to say.
    frames: VecDeque<Message>,
    in_frames: usize,
    needs_flush: bool,
    /// The last message. Its bytes share their memory with the buffer that the next is read into, until
    /// that is asked for: then the buffer is made anew, and the memory is freed with the message.
    last_message: Option<Bytes>,
    /// How many bytes came before the message that is being read.
    message_at: u64,
    /// How many bytes of it came, and when there were more at last.
    message: (u64, Instant),
    last_read: Instant,
    pinged: Option<Instant>,
    /// When the last response ended, unless the sockets to upstreams are closed since.
    last_end: Option<Instant>,
    /// When the socket takes no further response.
    until: Option<Instant>,
    leave: Option<BoxFuture<'static, Leave>>,
    leaving: Option<Leave>,
    /// When the close frame was written, or was to be.
    closing: Option<Instant>,
    /// Whether an error has ended the reading.
    is_unreadable: bool,
    timer: Pin<Box<Sleep>>,
    _open: OpenSocket,
}

/// Why a socket closes once it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    Drain,
    Reload,
    Age,
}

/// The caller is gone.
struct Gone;

impl CallerSocket {
    pub(super) fn new(
        socket: WebSocket,
        bridge: Arc<Bridge>,
        template: Template,
        charge: Charge,
        meter: Option<SocketMeter>,
    ) -> Self {
        let now = Instant::now();
        let leave = leave(bridge.leave.clone());
        if let Some(meter) = &meter {
            meter.read_frames();
        }
        let message_at = meter.as_ref().map_or(0, |meter| meter.read().1);
        Self {
            socket,
            until: bridge.settings.max_age.and_then(|age| now.checked_add(age)),
            bridge,
            template,
            charge,
            meter,
            lanes: Lanes::default(),
            running: SelectAll::new(),
            rests: FuturesUnordered::new(),
            frames: VecDeque::new(),
            in_frames: 0,
            needs_flush: false,
            last_message: None,
            message_at,
            message: (0, now),
            last_read: now,
            pinged: None,
            last_end: None,
            leave: Some(Box::pin(leave)),
            leaving: None,
            closing: None,
            is_unreadable: false,
            timer: Box::pin(sleep_until(now)),
            _open: OpenSocket::new(),
        }
    }

    /// Serves the socket until it is closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the socket and all calls of it.
    pub(super) async fn run(mut self) {
        std::future::poll_fn(|cx| match self.poll(cx) {
            Poll::Ready(Gone) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        })
        .await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        for _ in 0..STEPS {
            let mut is_busy = false;
            is_busy |= self.poll_leave(cx);
            let step = self
                .poll_read(cx)
                .and_then(|read| Ok(read | self.poll_write(cx)?));
            match step {
                Ok(step) => is_busy |= step,
                Err(Gone) => return Poll::Ready(Gone),
            }
            while let Poll::Ready(Some(lane)) = self.rests.poll_next_unpin(cx) {
                self.ended(&lane);
                is_busy = true;
            }
            if is_busy {
                continue;
            }
            match self.poll_time(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(Gone) => return Poll::Ready(Gone),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks whether the socket shall close, and closes it once it is idle.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> bool {
        let leave = self.leave.as_mut();
        if let Some(Poll::Ready(why)) = leave.map(|leave| leave.as_mut().poll(cx)) {
            self.leave_for(why);
        }
        let Some(why) = self
            .leaving
            .filter(|_| self.closing.is_none() && self.lanes.is_idle())
        else {
            return false;
        };
        let why = match why {
            Leave::Drain => "the gateway shuts down: connect to another",
            Leave::Reload => "the configuration was replaced: connect again",
            Leave::Age => {
                self.tell(limit_reached());
                "the connection is too old: connect again"
            }
        };
        self.close(close_code::AWAY, why);
        true
    }

    /// Closes the socket once nothing runs. What waits begins only in a drain, where the stack refuses it.
    fn leave_for(&mut self, why: Leave) {
        self.leave = None;
        self.leaving = Some(why);
        if why != Leave::Drain {
            for create in self.lanes.take_waiting() {
                self.tell(limit_reached().lane(create.lane));
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<bool, Gone> {
        // Behind the close frame the caller's own is awaited, whatever it still sends.
        let is_full = self.frames.len() >= MOST_FRAMES || self.in_frames >= MOST_IN_FRAMES;
        if is_full && self.closing.is_none() || self.is_unreadable {
            return Ok(false);
        }
        let read = match self.socket.poll_next_unpin(cx) {
            Poll::Ready(Some(read)) => read,
            Poll::Ready(None) => return Err(Gone),
            Poll::Pending => {
                self.last_message = None;
                self.count_message();
                return Ok(false);
            }
        };
        self.last_read = Instant::now();
        match read {
            Ok(message) => self.take(message),
            Err(error) => match refused(&error) {
                Some((code, error)) if self.closing.is_none() => {
                    self.is_unreadable = true;
                    self.tell(error);
                    self.drop_calls();
                    self.close(code, "the message cannot be read");
                }
                _ => return Err(Gone),
            },
        }
        Ok(true)
    }

    fn take(&mut self, message: Message) {
        let arrived = self.meter.as_ref().map_or(0, |meter| meter.read().1);
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            self.message_at = arrived;
            self.message = (0, self.last_read);
        }
        match message {
            Message::Text(text) => {
                self.last_message = Some(text.clone().into());
                if self.closing.is_none() {
                    self.event(&text);
                }
            }
            Message::Binary(bytes) => {
                self.last_message = Some(bytes);
                if self.closing.is_some() {
                    return;
                }
                let message = "A binary message is not an event: send text.";
                self.tell(ErrorFrame::refusal("invalid_message", message));
            }
            // These may stand between the parts of a message.
            Message::Ping(data) | Message::Pong(data) => {
                // Such a frame has a head of two bytes and a mask of four.
                let len = data.len() as u64 + 6;
                self.message_at = arrived.min(self.message_at + len);
                // The library has written the answer to a ping, and flushes it with the next frame.
                self.needs_flush = true;
            }
            Message::Close(_) => self.drop_calls(),
        }
    }

    fn event(&mut self, text: &Utf8Bytes) {
        match ClientEvent::read(text) {
            Ok(ClientEvent::Create(create)) => self.queue(*create),
            Ok(ClientEvent::Steer(steer)) => self.send(steer_failed(&steer)),
            Ok(ClientEvent::Interrupt(id)) => self.lanes.interrupt(&id),
            Ok(ClientEvent::Ignored) => {}
            Err(error) => self.tell(*error),
        }
    }

    fn queue(&mut self, create: Create) {
        let lane = create.lane.clone();
        if matches!(self.leaving, Some(Leave::Age | Leave::Reload)) {
            return self.tell(limit_reached().lane(lane));
        }
        if let Err(full) = self
            .charge
            .resize(self.lanes.bytes() + self.in_frames + create.len())
        {
            return self.tell(no_room(&full).lane(lane));
        }
        if let Err(error) = self.lanes.push(create) {
            self.tell(*error);
        }
        self.start();
    }

    /// Starts what may start.
    fn start(&mut self) {
        while let Some(create) = self.lanes.next() {
            let lane = create.lane.clone();
            let previous = create.previous.clone();
            if let Err(error) = self.start_one(create) {
                self.tell(*error);
                self.lanes.told(&lane, previous, None);
                self.lanes.ended(&lane);
            }
        }
        let _ = self.charge.resize(self.counted());
    }

    fn start_one(&mut self, create: Create) -> Result<(), Box<ErrorFrame>> {
        let items = create.items()?;
        let (base, resolved) = match &create.previous {
            None => (None, None),
            Some(id) => match self.lanes.kept(&create.lane, id) {
                Some(kept) => {
                    let mut all = kept.items.clone();
                    push_items(&mut all, &items);
                    (kept.base.clone(), Some(all))
                }
                None if may_know(&create, id) => (Some(id.clone()), None),
                None => {
                    let error = ErrorFrame::previous_not_found(id);
                    return Err(Box::new(error.lane(create.lane)));
                }
            },
        };
        let body = kept::body(&create, base.as_deref(), resolved.as_deref());
        let input = Kept {
            id: String::new(),
            base,
            items: resolved.unwrap_or_else(|| items.into_owned()),
        };
        if !create.generates {
            let (id, frames) = without_model(&create);
            for frame in frames {
                self.send(frame);
            }
            let kept = Some(Kept { id, ..input });
            self.lanes.told(&create.lane, None, kept);
            self.lanes.ended(&create.lane);
            return Ok(());
        }
        let mut request = self.template.request(&create.headers, body);
        let upstream = self.lanes.upstream(&create.lane);
        request.extensions_mut().insert(upstream);
        let call = self.bridge.service.clone().oneshot(request);
        let call = async move {
            let Ok(answer) = call.await;
            answer
        };
        let name = create.lane;
        let interrupt = self.lanes.started(&name, create.previous);
        let keep_alive = self.bridge.response_keep_alive;
        let steps = steps(call, name.clone(), input, interrupt, keep_alive);
        let steps = steps.map(move |step| (name.clone(), step));
        self.running.push(steps.boxed());
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<bool, Gone> {
        let is_ready = Pin::new(&mut self.socket).poll_ready(cx);
        match is_ready {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Err(Gone),
            Poll::Pending => return Ok(false),
        }
        if let Some(frame) = self.frames.pop_front() {
            if let Message::Text(text) = &frame {
                self.in_frames -= text.len();
            }
            self.write(frame)?;
            return Ok(true);
        }
        // The lanes are asked once the socket takes a frame.
        if let Poll::Ready(Some((lane, step))) = self.running.poll_next_unpin(cx) {
            match step {
                AnswerStep::Begun(id) => self.lanes.begun(&lane, id),
                AnswerStep::Frame(text) => self.write(Message::Text(text.into()))?,
                AnswerStep::End(outcome) => self.end(lane, outcome),
            }
            return Ok(true);
        }
        if self.needs_flush {
            match Pin::new(&mut self.socket).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.needs_flush = false,
                Poll::Ready(Err(_)) => return Err(Gone),
                Poll::Pending => {}
            }
        }
        Ok(false)
    }

    fn write(&mut self, frame: Message) -> Result<(), Gone> {
        self.needs_flush = true;
        Pin::new(&mut self.socket)
            .start_send(frame)
            .map_err(|_| Gone)
    }

    fn end(&mut self, lane: LaneName, AnswerEnd { kept, rest }: AnswerEnd) {
        self.lanes.told(&lane, None, kept);
        if self.charge.resize(self.counted()).is_err() {
            self.lanes.forget(&lane);
        }
        let Some(rest) = rest else {
            return self.ended(&lane);
        };
        // The next response of the lane begins once the call of this one is over, as one over HTTP would.
        let over = async move {
            read_out(rest).await;
            lane
        };
        self.rests.push(Box::pin(over));
    }

    fn ended(&mut self, lane: &LaneName) {
        self.lanes.ended(lane);
        self.last_end = Some(Instant::now());
        self.start();
    }

    /// Does what is due, and sets the timer for what is due next. Returns whether something was due.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Result<bool, Gone> {
        loop {
            let Some((at, due)) = self.due() else {
                return Ok(false);
            };
            if at > Instant::now() {
                if self.timer.deadline() != at {
                    self.timer.as_mut().reset(at);
                }
                // The timer is polled outside tokio's coop budget: a timer that is `Pending` for lack of
                // budget has not registered its waker.
                let mut timer = pin!(tokio::task::unconstrained(self.timer.as_mut()));
                if timer.as_mut().poll(cx).is_pending() {
                    return Ok(false);
                }
                continue;
            }
            match due {
                SocketDue::Drop => return Err(Gone),
                SocketDue::Stalled => {
                    let message = "The message stopped in its middle.";
                    let status = StatusCode::REQUEST_TIMEOUT;
                    let kind = "invalid_request_error";
                    let error = ErrorFrame::new(status, kind, "message_stalled", message);
                    self.tell(error.retry(true));
                    self.drop_calls();
                    self.close(close_code::POLICY, "a message stopped in its middle");
                }
                SocketDue::Ping => {
                    self.pinged = Some(Instant::now());
                    self.frames.push_back(Message::Ping(Bytes::new()));
                }
                // A caller that reads slowly has not got the ping yet. One that waits for nothing reads.
                SocketDue::Pong if self.needs_flush && !self.lanes.is_idle() => {
                    self.pinged = Some(Instant::now());
                    continue;
                }
                SocketDue::Pong => return Err(Gone),
                SocketDue::Upstreams => {
                    self.last_end = None;
                    self.lanes.drop_upstreams();
                }
                SocketDue::Age => {
                    self.leave_for(Leave::Age);
                }
            }
            return Ok(true);
        }
    }

    /// What is due next, and when.
    fn due(&self) -> Option<(Instant, SocketDue)> {
        if let Some(since) = self.closing {
            let patience = if self.is_unreadable { UNREAD } else { CLOSING };
            return Some((since + patience, SocketDue::Drop));
        }
        let read = self.last_read();
        let until = self.until.filter(|_| self.leaving != Some(Leave::Age));
        let mut next = until.map(|until| (until, SocketDue::Age));
        let mut or = |at: Instant, due| {
            if next.is_none_or(|(known, _)| at < known) {
                next = Some((at, due));
            }
        };
        if let Some(every) = self.bridge.keep_alive {
            match self.pinged.filter(|pinged| *pinged >= read) {
                Some(pinged) => or(pinged + every * SILENCES, SocketDue::Pong),
                // Early enough for proxies that wait as long as `keep_alive` for anything.
                None => or(read + every / 2, SocketDue::Ping),
            }
        }
        if let Some(ended) = self.last_end {
            or(ended + UPSTREAM_IDLE, SocketDue::Upstreams);
        }
        let idle = self.bridge.upload_idle.filter(|_| self.partial() > 0);
        if let Some(idle) = idle {
            or(self.message.1 + idle, SocketDue::Stalled);
        }
        next
    }

    fn last_read(&self) -> Instant {
        let of_socket = self.meter.as_ref().map(|meter| meter.read().0);
        of_socket.map_or(self.last_read, |at| at.max(self.last_read))
    }

    /// The bytes of the message that is being read.
    fn partial(&self) -> u64 {
        let read = self.meter.as_ref().map_or(0, |meter| meter.read().1);
        read.saturating_sub(self.message_at)
    }

    /// The bytes that the socket holds, for the count of request bodies.
    fn counted(&self) -> usize {
        let partial = Some(self.partial()).filter(|bytes| *bytes > UNCOUNTED);
        let partial = partial.and_then(|bytes| usize::try_from(bytes).ok());
        self.lanes.bytes() + self.in_frames + partial.unwrap_or(0)
    }

    /// Counts the message that is being read, and refuses it if there is no room for it.
    fn count_message(&mut self) {
        let partial = self.partial();
        if partial > self.message.0 {
            self.message.1 = Instant::now();
        }
        self.message.0 = partial;
        if self.closing.is_some() {
            return;
        }
        if let Err(full) = self.charge.resize(self.counted()) {
            // What waits and what is kept has its room already.
            if partial <= UNCOUNTED {
                return;
            }
            self.tell(no_room(&full));
            self.drop_calls();
            self.close(close_code::AGAIN, "no room for the message");
        }
    }

    fn tell(&mut self, error: ErrorFrame) {
        self.send(error.into_text());
    }

    fn send(&mut self, text: String) {
        self.in_frames += text.len();
        self.frames.push_back(Message::Text(text.into()));
    }

    fn close(&mut self, code: u16, reason: &'static str) {
        self.closing = Some(Instant::now());
        let reason = Utf8Bytes::from_static(reason);
        self.frames
            .push_back(Message::Close(Some(CloseFrame { code, reason })));
    }

    /// Drops all calls: nobody waits for them any more.
    fn drop_calls(&mut self) {
        drop(mem::take(&mut self.running));
        self.rests.clear();
        self.lanes = Lanes::default();
        let _ = self.charge.resize(self.counted());
    }
}

/// What a deadline means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketDue {
    Ping,
    Pong,
    Stalled,
    Upstreams,
    Age,
    Drop,
}

/// Waits until the socket shall close: for ever, if nobody is left to say so.
async fn leave(signals: LeaveSignals) -> Leave {
    let LeaveSignals {
        mut draining,
        mut reloads,
    } = signals;
    let drain = async {
        let drains = draining.wait_for(|draining| *draining).await.is_ok();
        match drains {
            true => Leave::Drain,
            false => pending().await,
        }
    };
    let change = async {
        match reloads.changed().await {
            Ok(()) => Leave::Reload,
            Err(_) => pending().await,
        }
    };
    let (drain, change) = (pin!(drain), pin!(change));
    select(drain, change).await.factor_first().0
}

/// Whether an upstream may know the response that this one continues.
fn may_know(create: &Create, id: &str) -> bool {
    create.may_be_stored && create.generates && !is_without_model(id)
}

/// Reads what is left of an answer, so that its call ends as an answer that was taken whole.
async fn read_out(mut rest: Body) {
    let read = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = timeout(REST, read).await;
}

fn no_room(full: &impl Display) -> ErrorFrame {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let code = "upload_buffer_full";
    ErrorFrame::new(status, code, code, &full.to_string()).retry(true)
}

fn limit_reached() -> ErrorFrame {
    let message = "This connection takes no further response: connect again.";
    let code = "websocket_connection_limit_reached";
    ErrorFrame::new(
        StatusCode::BAD_REQUEST,
        "invalid_request_error",
        code,
        message,
    )
}

/// The close code and the error for a message that cannot be read; `None` if the caller is gone.
fn refused(error: &axum::Error) -> Option<(u16, ErrorFrame)> {
    use tokio_tungstenite::tungstenite::Error as WsError;

    match error.source()?.downcast_ref::<WsError>()? {
        WsError::Capacity(_) => {
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            let message = "The message is larger than this server takes.";
            let kind = "invalid_request_error";
            let error = ErrorFrame::new(status, kind, "websocket_message_too_large", message);
            Some((close_code::SIZE, error.retry(false)))
        }
        WsError::Utf8(_) => {
            let error = ErrorFrame::refusal("invalid_utf8", "The message is not UTF-8.");
            Some((close_code::INVALID, error))
        }
        WsError::Protocol(error) => {
            use tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
            if *error == ResetWithoutClosingHandshake {
                return None;
            }
            let message = format!("The message breaks the protocol: {error}.");
            let error = ErrorFrame::refusal("invalid_message", &message);
            Some((close_code::PROTOCOL, error))
        }
        _ => None,
    }
}
