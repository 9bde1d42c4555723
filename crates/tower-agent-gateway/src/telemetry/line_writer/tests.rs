//! covers: D5

use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::Instant;

use super::{LineKind, LineWriter, MOST_RECORDS as MOST};

const PATIENCE: Duration = Duration::from_secs(10);

/// An output that sends each write to `written`, once `may` allows it.
struct Slow {
    may: Receiver<()>,
    written: Sender<Vec<u8>>,
}

impl Write for Slow {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.may.recv().map_err(gone)?;
        self.written.send(line.to_vec()).map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn slow() -> (LineWriter, Sender<()>, Receiver<Vec<u8>>) {
    let (let_go, may) = channel();
    let (written, lines) = channel();
    let writer = LineWriter::records(Slow { may, written }).unwrap();
    (writer, let_go, lines)
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
    records.flush_within(PATIENCE);

    let got: Vec<u8> = lines.try_iter().flatten().collect();
    let got: Vec<_> = got.split_inclusive(|byte| *byte == b'\n').collect();
    // The lines that the thread is writing count against the cap, too.
    assert_eq!(got.len(), MOST);
    let lost = records.0.lock().lost;
    assert_eq!(got.len() as u64 + lost, sent as u64);
    assert_eq!(got[0], b"0\n");
    assert_eq!(got[MOST - 1], format!("{}\n", MOST - 1).as_bytes());
}

#[test]
fn a_reader_who_has_gone_is_waited_for_no_more() {
    let (mut records, let_go, lines) = slow();
    drop(let_go);
    records.write_all(b"1\n").unwrap();
    // The thread has dropped its output.
    assert!(lines.recv_timeout(PATIENCE).is_err());
    records.flush_within(PATIENCE);
    records.write_all(b"2\n").unwrap();

    assert_eq!(records.0.lock().lost, 1);
}

#[test]
fn a_log_says_what_it_lost_once_there_is_room() {
    let (mut log, let_go, lines) = full_log();
    let_go.send(()).unwrap();
    // The thread has taken all that the queue had.
    let mut got = lines.recv_timeout(PATIENCE).unwrap();
    while log.0.lock().unwritten > 0 {
        let_go.send(()).unwrap();
        thread::yield_now();
    }
    log.write_all(b"5\n").unwrap();
    let_go.send(()).unwrap();
    log.flush_within(PATIENCE);

    got.extend(lines.try_iter().flatten());
    let told = "1\n2\n2 lines of the log were dropped: they could not be written\n5\n";
    assert_eq!(String::from_utf8(got).unwrap(), told);
}

#[test]
fn a_log_says_at_its_end_what_it_lost() {
    let (log, let_go, lines) = full_log();
    for _ in 0..3 {
        let_go.send(()).unwrap();
    }
    log.flush_within(PATIENCE);

    let got: Vec<u8> = lines.try_iter().flatten().collect();
    let told = "1\n2\n2 lines of the log were dropped: they could not be written\n";
    assert_eq!(String::from_utf8(got).unwrap(), told);
}

#[test]
fn dropped_lines_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || drop(full_log()));
    let text = recorder.handle().render();
    let counted = "agent_lines_dropped_total{output=\"log\"} 2";
    assert!(text.lines().any(|line| line == counted), "{text}");
}

/// A log with room for two lines, to which four were written.
fn full_log() -> (LineWriter, Sender<()>, Receiver<Vec<u8>>) {
    let (let_go, may) = channel();
    let (written, lines) = channel();
    let mut log = LineWriter::new(Slow { may, written }, LineKind::Log, 2).unwrap();
    for line in ["1\n", "2\n", "3\n", "4\n"] {
        log.write_all(line.as_bytes()).unwrap();
    }
    (log, let_go, lines)
}

/// An output that fails, or panics, at its first write.
struct Failing {
    panics: bool,
    has_failed: bool,
    written: Sender<Vec<u8>>,
}

impl Write for Failing {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.has_failed, true) {
            assert!(!self.panics, "the output panics");
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.written.send(text.to_vec()).map_err(io::Error::other)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failing(panics: bool, kind: LineKind) -> (LineWriter, Receiver<Vec<u8>>) {
    let (written, got) = channel();
    let out = Failing {
        panics,
        has_failed: false,
        written,
    };
    (LineWriter::new(out, kind, MOST).unwrap(), got)
}

#[test]
fn a_log_goes_on_after_an_error_that_passes() {
    let (mut log, lines) = failing(false, LineKind::Log);
    log.write_all(b"1\n").unwrap();
    log.flush_within(PATIENCE);
    log.write_all(b"2\n").unwrap();
    log.flush_within(PATIENCE);

    let got: Vec<u8> = lines.try_iter().flatten().collect();
    let told = "1 lines of the log were dropped: they could not be written\n2\n";
    assert_eq!(String::from_utf8(got).unwrap(), told);
}

#[test]
fn an_output_that_panics_is_waited_for_no_more() {
    for kind in [LineKind::Log, LineKind::Records] {
        let (mut writer, _) = failing(true, kind);
        let start = Instant::now();
        writer.write_all(b"1\n").unwrap();
        writer.flush_within(PATIENCE);
        assert!(start.elapsed() < PATIENCE / 2);
        writer.write_all(b"2\n").unwrap();
        assert_eq!(writer.0.lock().lost, 1);
    }
}

/// The thread collects lines after a write; a flush ends that pause.
#[test]
fn what_was_taken_is_written_when_the_flush_returns() {
    let (written, lines) = channel();
    let (let_go, may) = channel();
    let mut log = LineWriter::log(Slow { may, written }).unwrap();
    for number in 0..100 {
        let_go.send(()).unwrap();
        log.write_all(format!("{number}\n").as_bytes()).unwrap();
        log.flush_within(PATIENCE);
        assert_eq!(
            lines.try_iter().flatten().count(),
            format!("{number}\n").len()
        );
    }
}

/// An output that takes a part of a line, and then fails twice.
struct Torn {
    calls: usize,
    written: Sender<Vec<u8>>,
}

impl Write for Torn {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        let taken = match self.calls {
            1 => &text[..3],
            2 => return Err(io::ErrorKind::StorageFull.into()),
            3 => return Err(io::ErrorKind::WouldBlock.into()),
            _ => text,
        };
        self.written
            .send(taken.to_vec())
            .map_err(io::Error::other)?;
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn records_go_on_after_an_error_and_a_torn_one_spoils_no_other() {
    let (written, lines) = channel();
    let mut records = LineWriter::records(Torn { calls: 0, written }).unwrap();
    for record in ["{\"n\":1}\n", "{\"n\":2}\n", "{\"n\":3}\n", "{\"n\":4}\n"] {
        records.write_all(record.as_bytes()).unwrap();
        records.flush_within(PATIENCE);
    }

    let got: Vec<u8> = lines.try_iter().flatten().collect();
    let got = String::from_utf8(got).unwrap();
    assert_eq!(got, "{\"n\n{\"n\":3}\n{\"n\":4}\n");
    assert_eq!(
        records.0.lock().lost,
        2,
        "the torn one, and the one after it"
    );
}

/// A real device that is always full.
#[test]
fn records_to_a_full_device_are_lost_one_by_one_and_waited_for() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut records = LineWriter::records(full).unwrap();
    for number in 1..=3 {
        records.write_all(b"{}\n").unwrap();
        records.flush_within(PATIENCE);
        let queue = records.0.lock();
        assert_eq!((queue.lost, queue.is_broken), (number, false));
    }
}
