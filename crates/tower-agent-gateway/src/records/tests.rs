//! covers: D5

use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

use super::{MOST, Records};

const PATIENCE: Duration = Duration::from_secs(10);

/// Hands on what is written, once it may.
struct Slow {
    may: Receiver<()>,
    written: Sender<Vec<u8>>,
}

impl Write for Slow {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.may.recv().map_err(io::Error::other)?;
        self.written.send(line.to_vec()).map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn slow() -> (Records, Sender<()>, Receiver<Vec<u8>>) {
    let (let_go, may) = channel();
    let (written, lines) = channel();
    (Records::new(Slow { may, written }).unwrap(), let_go, lines)
}

#[test]
fn a_reader_who_is_slow_costs_lines_and_no_time() {
    let (mut records, let_go, lines) = slow();
    let sent = MOST + 10;
    for number in 0..sent {
        records.write_all(format!("{number}\n").as_bytes()).unwrap();
    }
    for _ in 0..sent {
        let_go.send(()).unwrap();
    }
    records.written(PATIENCE);

    let got: Vec<_> = lines.try_iter().collect();
    // One more than it holds may have been taken out by then.
    assert!((MOST..=MOST + 1).contains(&got.len()), "{}", got.len());
    let lost = records.lost.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(got.len() as u64 + lost, sent as u64);
    assert_eq!(got[0], b"0\n");
    assert_eq!(got[MOST - 1], format!("{}\n", MOST - 1).into_bytes());
}

#[test]
fn a_reader_who_has_gone_is_waited_for_no_more() {
    let (mut records, let_go, lines) = slow();
    drop(let_go);
    records.write_all(b"1\n").unwrap();
    // The thread has dropped what it writes to.
    assert!(lines.recv_timeout(PATIENCE).is_err());
    records.written(PATIENCE);
    records.write_all(b"2\n").unwrap();

    assert_eq!(records.lost.load(std::sync::atomic::Ordering::Relaxed), 1);
}
