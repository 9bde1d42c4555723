//! Finds out by its first bytes whether a body is an event stream.

/// The beginnings of an event stream's first line, that of an error as a field among them.
const STARTS: [&[u8]; 6] = [b"data:", b"event:", b"id:", b"retry:", b"error:", b":"];

/// The length of the longest of [`STARTS`].
const LONGEST: usize = 6;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Reads the first bytes of a body whose head does not say what it is.
#[derive(Debug, Default)]
pub struct StreamSniffer {
    /// The bytes so far, without the white space before them.
    start: [u8; LONGEST],
    len: usize,
}

impl StreamSniffer {
    /// Reads the next bytes, and returns whether the body is an event stream; `None` while more
    /// bytes are needed.
    pub fn push(&mut self, chunk: &[u8]) -> Option<bool> {
        for &byte in chunk {
            let is_blank = byte.is_ascii_whitespace();
            if self.len == 0 && is_blank {
                continue;
            }
            self.start[self.len] = byte;
            self.len += 1;
            let start = &self.start[..self.len];
            if start == BOM {
                self.len = 0;
            } else if STARTS.contains(&start) {
                return Some(true);
            } else if !BOM.starts_with(start) && !STARTS.iter().any(|it| it.starts_with(start)) {
                return Some(false);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sniff(body: &[u8], step: usize) -> Option<bool> {
        let mut sniffer = StreamSniffer::default();
        body.chunks(step).find_map(|chunk| sniffer.push(chunk))
    }

    #[test]
    fn the_first_line_decides() {
        let cases: [(&str, Option<bool>); 18] = [
            ("data: {}", Some(true)),
            ("data:{}", Some(true)),
            (": OPENROUTER PROCESSING", Some(true)),
            ("event: message_start", Some(true)),
            ("\r\n\n id: 1", Some(true)),
            ("retry: 3000\n", Some(true)),
            ("error: {\"code\":500}", Some(true)),
            ("error of the proxy", Some(false)),
            ("\u{feff}data: 1", Some(true)),
            ("\u{feff}{\"a\":1}", Some(false)),
            ("{\"data:\": 1}", Some(false)),
            ("<html>", Some(false)),
            ("datum: 1", Some(false)),
            ("event", None),
            ("", None),
            ("   \n", None),
            ("retry", None),
            ("\u{e9}", Some(false)),
        ];
        for (body, expected) in cases {
            for step in 1..=body.len().max(1) {
                assert_eq!(sniff(body.as_bytes(), step), expected, "{body:?} by {step}");
            }
        }
    }
}
