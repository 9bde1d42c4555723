//! What the program prints for a person or a pipe: to standard output, and complaints to standard error.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

/// Prints to standard output, and flushes it; returns whether the reader is still there.
///
/// A reader that has left, as in `--help | head -1`, is no error: it has what it wants.
///
/// # Errors
///
/// If the output cannot be written for another reason, such as a full disk.
pub fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<bool> {
    print_to(&mut io::stdout().lock(), write)
}

/// Prints a line to standard error. If that is not possible, nothing is printed.
pub fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "gateway: {line}");
}

fn print_to(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<bool> {
    match write(out).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output whose writes, or only whose flushes, fail.
    struct Broken(ErrorKind, bool);

    impl Write for Broken {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 {
                Ok(bytes.len())
            } else {
                Err(self.0.into())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_left_is_no_error_and_a_full_disk_is_one() {
        for flushes in [false, true] {
            let print = |kind| print_to(&mut Broken(kind, flushes), |out| out.write_all(b"text"));
            assert!(!print(ErrorKind::BrokenPipe).unwrap());
            let error = print(ErrorKind::StorageFull).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
        }
        assert!(print_to(&mut Vec::new(), |out| out.write_all(b"text")).unwrap());
    }
}
