//! The lanes of a socket: what waits in each, and what each keeps.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::{client_event::Create, frames::ErrorFrame, kept::Kept};
use crate::stacks::UpstreamLane;

/// The most responses that run at once, of all lanes.
const MOST_AT_ONCE: usize = 16;

/// The most lanes with a name.
const MOST_NAMED: usize = 32;

/// The most responses that wait.
const MOST_WAITING: usize = 64;

/// The most bytes of conversations that one socket keeps.
const MOST_KEPT: usize = 16 * 1024 * 1024;

/// The lanes of one socket.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: HashMap<LaneName, Lane>,
    /// The lanes that have something to start, in the order of its arrival.
    ready: VecDeque<LaneName>,
    running: usize,
    waiting: usize,
    /// The bytes of what waits, and of what is kept.
    bytes: usize,
    kept_bytes: usize,
}

/// The name of a lane; `None` is the default one.
pub(super) type LaneName = Option<String>;

/// First in, first out, without overlap.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Create>,
    running: Option<RunningResponse>,
    kept: Option<Kept>,
    /// The sockets to upstreams that speak WebSocket, too.
    upstream: UpstreamLane,
}

#[derive(Debug)]
struct RunningResponse {
    /// The response that this one continues.
    continues: Option<String>,
    /// Its own id, once the upstream has told it.
    id: Option<String>,
    interrupt: Option<oneshot::Sender<()>>,
}

impl Lanes {
    /// The bytes that the lanes hold.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing runs and nothing waits.
    pub(super) const fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }

    /// Puts a response at the end of its lane.
    ///
    /// # Errors
    ///
    /// If there are too many lanes, or too many responses wait.
    pub(super) fn push(&mut self, create: Create) -> Result<(), Box<ErrorFrame>> {
        let named = self.lanes.keys().filter(|name| name.is_some()).count();
        let refused = |code: &str, message: &str| {
            let error = ErrorFrame::refusal(code, message);
            Err(Box::new(error.lane(create.lane.clone())))
        };
        if self.waiting >= MOST_WAITING {
            let message = "64 responses wait on this connection already.";
            return refused("websocket_queue_full", message);
        }
        let is_new = create.lane.is_some() && !self.lanes.contains_key(&create.lane);
        if is_new && named >= MOST_NAMED {
            let message = "This connection has used 32 names of lanes already.";
            return refused("websocket_stream_limit_reached", message);
        }
        self.waiting += 1;
        self.bytes += create.len();
        let name = create.lane.clone();
        let lane = self.lanes.entry(name.clone()).or_default();
        lane.waiting.push_back(create);
        if lane.running.is_none() && lane.waiting.len() == 1 {
            self.ready.push_back(name);
        }
        Ok(())
    }

    /// Takes the next response that may start now.
    pub(super) fn next(&mut self) -> Option<Create> {
        if self.running >= MOST_AT_ONCE {
            return None;
        }
        let name = self.ready.pop_front()?;
        let create = self.lanes.get_mut(&name)?.waiting.pop_front()?;
        self.waiting -= 1;
        self.bytes -= create.len();
        Some(create)
    }

    /// The sockets to the upstreams of a lane.
    pub(super) fn upstream(&self, name: &LaneName) -> UpstreamLane {
        let lane = self.lanes.get(name);
        lane.map(|lane| lane.upstream.clone()).unwrap_or_default()
    }

    /// The conversation of a response: that of this lane, or else of whichever lane it was.
    pub(super) fn kept(&self, name: &LaneName, id: &str) -> Option<&Kept> {
        let own = self.lanes.get(name).into_iter();
        let mut kept = own
            .chain(self.lanes.values())
            .filter_map(|lane| lane.kept.as_ref());
        kept.find(|kept| kept.id == id)
    }

    /// Takes all that waits.
    pub(super) fn take_waiting(&mut self) -> Vec<Create> {
        let lanes = self.lanes.values_mut();
        let waiting: Vec<_> = lanes.flat_map(|lane| lane.waiting.drain(..)).collect();
        self.ready.clear();
        self.waiting = 0;
        self.bytes -= waiting.iter().map(Create::len).sum::<usize>();
        waiting
    }

    /// Closes the sockets to upstreams of the lanes in which nothing runs.
    pub(super) fn drop_upstreams(&mut self) {
        let idle = self
            .lanes
            .values_mut()
            .filter(|lane| lane.running.is_none());
        idle.for_each(|lane| lane.upstream = UpstreamLane::default());
    }

    /// Notes that a response of [`next`](Self::next) runs. The body of its call counts by itself.
    ///
    /// The result resolves if the response is [interrupted](Self::interrupt).
    pub(super) fn started(
        &mut self,
        name: &LaneName,
        continues: Option<String>,
    ) -> oneshot::Receiver<()> {
        let (interrupt, receiver) = oneshot::channel();
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.running = Some(RunningResponse {
                continues,
                id: None,
                interrupt: Some(interrupt),
            });
            self.running += 1;
        }
        receiver
    }

    /// Notes the id of the response that runs in a lane.
    pub(super) fn begun(&mut self, name: &LaneName, id: String) {
        let lane = self.lanes.get_mut(name);
        if let Some(running) = lane.and_then(|lane| lane.running.as_mut()) {
            running.id = Some(id);
        }
    }

    /// Ends the response with this id, if it runs.
    pub(super) fn interrupt(&mut self, id: &str) {
        let running = self
            .lanes
            .values_mut()
            .filter_map(|lane| lane.running.as_mut());
        for running in running.filter(|running| running.id.as_deref() == Some(id)) {
            if let Some(interrupt) = running.interrupt.take() {
                // A response that has ended by now needs no end.
                let _ = interrupt.send(());
            }
        }
    }

    /// Notes what a response of [`next`](Self::next) leaves behind: `kept` is what others may continue, `None`
    /// if it failed; `continued` is what it continued itself, unless it [started](Self::started). A
    /// conversation for which there is no room is forgotten.
    pub(super) fn told(&mut self, name: &LaneName, continued: Option<String>, kept: Option<Kept>) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let running = lane.running.as_mut();
        let continued = running.map_or(continued, |running| running.continues.take());
        let lasts = lane.kept.as_ref().map(|kept| &kept.id);
        // A continuation that fails takes the id of its own lane along.
        let takes_along = lasts.is_some() && lasts == continued.as_ref();
        if kept.is_some() || takes_along {
            self.forget(name);
        }
        let kept = kept.filter(|kept| self.kept_bytes + kept.len() <= MOST_KEPT);
        if let (Some(kept), Some(lane)) = (kept, self.lanes.get_mut(name)) {
            self.kept_bytes += kept.len();
            self.bytes += kept.len();
            lane.kept = Some(kept);
        }
    }

    /// Notes that the next response of a lane may start.
    pub(super) fn ended(&mut self, name: &LaneName) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        if lane.running.take().is_some() {
            self.running -= 1;
        }
        if !lane.waiting.is_empty() {
            self.ready.push_back(name.clone());
        }
    }

    /// Forgets the conversation of a lane.
    pub(super) fn forget(&mut self, name: &LaneName) {
        let lane = self.lanes.get_mut(name);
        if let Some(kept) = lane.and_then(|lane| lane.kept.take()) {
            self.kept_bytes -= kept.len();
            self.bytes -= kept.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(lane: Option<&str>, fields: &str) -> Create {
        Create {
            lane: lane.map(str::to_owned),
            fields: fields.to_owned(),
            ..Create::default()
        }
    }

    fn kept(id: &str, bytes: usize) -> Option<Kept> {
        let (id, items) = (id.to_owned(), "x".repeat(bytes));
        Some(Kept {
            id,
            items,
            base: None,
        })
    }

    #[test]
    fn a_lane_is_first_in_first_out_and_lanes_run_side_by_side() {
        let mut lanes = Lanes::default();
        for (lane, fields) in [(None, "1"), (None, "2"), (Some("a"), "3"), (None, "4")] {
            lanes.push(create(lane, fields)).unwrap();
        }
        let start = |lanes: &mut Lanes| {
            let next = lanes.next()?;
            drop(lanes.started(&next.lane, None));
            Some(next.fields)
        };
        assert_eq!(start(&mut lanes).as_deref(), Some("1"));
        assert_eq!(start(&mut lanes).as_deref(), Some("3"));
        assert_eq!(start(&mut lanes), None);
        lanes.told(&None, None, None);
        lanes.ended(&None);
        assert_eq!(start(&mut lanes).as_deref(), Some("2"));
        lanes.told(&Some("a".to_owned()), None, None);
        lanes.ended(&Some("a".to_owned()));
        assert_eq!(start(&mut lanes), None);
        lanes.told(&None, None, None);
        lanes.ended(&None);
        assert_eq!(start(&mut lanes).as_deref(), Some("4"));
        lanes.told(&None, None, None);
        lanes.ended(&None);
        assert!(lanes.is_idle());
        assert_eq!(lanes.bytes(), 0);
    }

    #[test]
    fn sixteen_run_at_once_and_there_are_thirty_two_names() {
        let mut lanes = Lanes::default();
        for lane in 0..32 {
            lanes.push(create(Some(&lane.to_string()), "")).unwrap();
        }
        lanes.push(create(None, "")).unwrap();
        let refused = lanes.push(create(Some("one more"), "")).unwrap_err();
        assert_eq!(refused.code(), "websocket_stream_limit_reached");
        let mut started = Vec::new();
        while let Some(next) = lanes.next() {
            drop(lanes.started(&next.lane, None));
            started.push(next.lane);
        }
        assert_eq!(started.len(), 16);
        lanes.told(&started[0], None, None);
        lanes.ended(&started[0]);
        assert!(lanes.next().is_some());
    }

    #[test]
    fn no_more_than_sixty_four_wait() {
        let mut lanes = Lanes::default();
        for _ in 0..64 {
            lanes.push(create(None, "")).unwrap();
        }
        let refused = lanes.push(create(None, "")).unwrap_err();
        assert_eq!(refused.code(), "websocket_queue_full");
    }

    #[test]
    fn a_continuation_that_fails_takes_the_id_of_its_own_lane() {
        let a = || Some("a".to_owned());
        let mut lanes = Lanes::default();
        for lane in [None, Some("a")] {
            lanes.push(create(lane, "")).unwrap();
            lanes.next().unwrap();
        }
        drop(lanes.started(&None, None));
        lanes.told(&None, None, kept("resp_1", 10));
        lanes.ended(&None);
        assert_eq!(lanes.bytes(), 16);

        // In another lane it fails without harm.
        drop(lanes.started(&a(), Some("resp_1".to_owned())));
        lanes.told(&a(), None, None);
        lanes.ended(&a());
        assert!(lanes.kept(&None, "resp_1").is_some());
        // So does a response of its own lane that does not continue it.
        drop(lanes.started(&None, None));
        lanes.told(&None, None, None);
        lanes.ended(&None);
        assert!(lanes.kept(&None, "resp_1").is_some());
        drop(lanes.started(&None, Some("resp_1".to_owned())));
        lanes.told(&None, None, None);
        lanes.ended(&None);
        assert_eq!(lanes.kept(&None, "resp_1"), None);
        assert_eq!(lanes.bytes(), 0);
    }

    #[test]
    fn a_conversation_beyond_the_bound_is_forgotten() {
        let mut lanes = Lanes::default();
        lanes.push(create(None, "")).unwrap();
        lanes.next().unwrap();
        drop(lanes.started(&None, None));
        lanes.told(&None, None, kept("small", MOST_KEPT - 5));
        lanes.ended(&None);
        assert!(lanes.kept(&None, "small").is_some());
        drop(lanes.started(&None, None));
        lanes.told(&None, None, kept("large", MOST_KEPT - 4));
        lanes.ended(&None);
        assert_eq!(
            (lanes.kept(&None, "small"), lanes.kept(&None, "large")),
            (None, None)
        );
        assert_eq!(lanes.bytes(), 0);
    }
}
