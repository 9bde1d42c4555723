//! Pages of the runs of several gateways, as one.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Positions,
    asking::at_replica,
    question::{PageAnswer, PageRow},
};

/// The page of a gateway.
#[derive(Debug)]
pub(crate) struct Page {
    /// The name of the gateway.
    pub(crate) replica: String,
    /// Its id in the store.
    pub(crate) id: String,
    pub(crate) page: PageAnswer,
}

/// The newest `limit` rows of all pages, newest first, and the positions behind them if more follow.
///
/// A gateway's own order stays. `after` are the positions that the pages begin behind: a gateway without
/// a page keeps its position. If a page ends before its gateway's runs do, so does the whole.
pub(crate) fn merge(
    pages: Vec<Page>,
    after: &Positions,
    limit: usize,
) -> (Vec<Value>, Option<Positions>) {
    let mut next = after.clone();
    let mut sources: Vec<_> = pages.into_iter().map(PageSource::new).collect();
    for source in &sources {
        next.set(&source.id, source.start);
    }
    let mut merged = Vec::new();
    while merged.len() < limit && !sources.iter().any(PageSource::is_cut) {
        let heads = sources.iter().enumerate();
        let heads =
            heads.filter_map(|(at, source)| Some((source.rows.as_slice().first()?.age_us, at)));
        let Some((_, newest)) = heads.min() else {
            break;
        };
        let source = &mut sources[newest];
        let Some(row) = source.rows.next() else { break };
        next.set(&source.id, row.position);
        let run = serde_json::from_str(row.run.get()).unwrap_or_default();
        merged.push(at_replica(run, &source.replica));
    }
    for source in sources.iter().filter(|source| source.is_done()) {
        // What is opened there from now on is on no page of this list.
        next.set(&source.id, END);
    }
    let has_more = !sources.iter().all(PageSource::is_done);
    (merged, has_more.then_some(next))
}

/// The first `limit` rows of all pages by their keys.
pub(crate) fn merge_sorted(pages: Vec<Page>, limit: usize) -> Vec<Value> {
    let mut rows: Vec<_> = pages
        .into_iter()
        .flat_map(|page| {
            let replica: Arc<str> = page.replica.into();
            let rows = page.page.rows.into_iter();
            rows.map(move |row| (row, Arc::clone(&replica)))
        })
        .collect();
    rows.sort_by(|(one, _), (other, _)| one.key.before(&other.key));
    rows.truncate(limit);
    let shown = rows.into_iter().map(|(row, replica)| {
        let run = serde_json::from_str(row.run.get()).unwrap_or_default();
        at_replica(run, &replica)
    });
    shown.collect()
}

/// The position behind all runs of a gateway, as [`RunCursor::END`](tower_agent::registry::RunCursor::END).
const END: u64 = 0;

/// A page that is being merged.
struct PageSource {
    replica: String,
    id: String,
    start: u64,
    more: bool,
    rows: std::vec::IntoIter<PageRow>,
}

impl PageSource {
    fn new(page: Page) -> Self {
        let Page { replica, id, page } = page;
        Self {
            replica,
            id,
            start: page.start,
            more: page.more,
            rows: page.rows.into_iter(),
        }
    }

    /// Whether its next row is on none of the pages.
    fn is_cut(&self) -> bool {
        self.more && self.rows.len() == 0
    }

    fn is_done(&self) -> bool {
        !self.more && self.rows.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::answering::raw, *};
    use crate::routes::selection::RowKey;

    /// A gateway whose runs are this old, newest first, at positions from 100 down.
    struct Gateway {
        id: &'static str,
        ages: Vec<u64>,
    }

    impl Gateway {
        fn page(&self, after: &Positions, limit: usize) -> Page {
            let before = after.of(self.id).unwrap_or(u64::MAX);
            let all = (1..=100).rev().zip(&self.ages);
            let rows = all.filter(|(position, _)| *position < before);
            let mut rows: Vec<_> = rows
                .map(|(position, age)| PageRow {
                    position,
                    age_us: *age,
                    key: RowKey::default(),
                    run: raw(&json!({ "run": age })),
                })
                .collect();
            let more = rows.len() > limit;
            rows.truncate(limit);
            let page = PageAnswer {
                start: rows.first().map_or(0, |row| row.position + 1),
                rows,
                more,
            };
            Page {
                replica: self.id.to_uppercase(),
                id: self.id.to_owned(),
                page,
            }
        }
    }

    /// The runs on each page, with the first letter of their gateway.
    fn pages(gateways: &[Gateway], limit: usize) -> Vec<Vec<(String, u64)>> {
        let (mut all, mut after) = (Vec::new(), Positions::default());
        loop {
            let pages = gateways.iter().map(|it| it.page(&after, limit)).collect();
            let (rows, next) = merge(pages, &after, limit);
            let row = |row: &Value| {
                let replica = row["replica"].as_str().unwrap().to_owned();
                (replica, row["run"].as_u64().unwrap())
            };
            all.push(rows.iter().map(row).collect());
            let Some(next) = next else { return all };
            after = next.to_string().parse().unwrap();
        }
    }

    #[test]
    fn the_pages_of_gateways_show_each_run_once_newest_first() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let gateways = ["a", "b", "c"].map(|id| {
                let mut ages: Vec<_> = (0..random.usize(..20))
                    .map(|_| random.u64(..1000))
                    .collect();
                ages.sort_unstable();
                Gateway { id, ages }
            });
            let mut expected: Vec<_> = gateways.iter().flat_map(|it| it.ages.clone()).collect();
            expected.sort_unstable();
            let limit = random.usize(1..8);
            let pages = pages(&gateways, limit);
            for page in &pages[..pages.len() - 1] {
                assert_eq!(page.len(), limit);
            }
            let shown = pages.concat();
            let ages: Vec<_> = shown.iter().map(|(_, age)| *age).collect();
            assert_eq!(ages, expected);
            for gateway in &gateways {
                let own = shown
                    .iter()
                    .filter(|(id, _)| *id == gateway.id.to_uppercase());
                assert_eq!(own.count(), gateway.ages.len());
            }
        }
    }

    /// Of a gateway that is silent for a page nothing is shown twice, and nothing lost if it is back in
    /// time.
    #[test]
    fn a_silent_gateway_keeps_its_position() {
        let gateways = [("a", vec![1, 3, 5]), ("b", vec![2, 4, 6])];
        let [a, b] = gateways.map(|(id, ages)| Gateway { id, ages });
        let shown = |rows: &[Value]| -> Vec<_> {
            rows.iter()
                .map(|row| row["run"].as_u64().unwrap())
                .collect()
        };
        let none = Positions::default();
        let (rows, next) = merge(vec![a.page(&none, 2), b.page(&none, 2)], &none, 2);
        assert_eq!(shown(&rows), [1, 2]);
        let after = next.unwrap();
        let (rows, next) = merge(vec![a.page(&after, 1)], &after, 1);
        assert_eq!(shown(&rows), [3]);
        let after = next.unwrap();
        let (rows, next) = merge(vec![a.page(&after, 9), b.page(&after, 9)], &after, 9);
        assert_eq!((shown(&rows), next), (vec![4, 5, 6], None));
    }

    #[test]
    fn a_page_that_is_cut_ends_the_whole() {
        let gateways = [("a", vec![1, 2, 3]), ("b", vec![4, 5])];
        let [a, b] = gateways.map(|(id, ages)| Gateway { id, ages });
        let none = Positions::default();
        let (rows, next) = merge(vec![a.page(&none, 1), b.page(&none, 5)], &none, 5);
        assert_eq!(rows.len(), 1, "the second run is on no page");
        let next = next.unwrap();
        assert_eq!((next.of("a"), next.of("b")), (Some(100), Some(101)));
    }
}
