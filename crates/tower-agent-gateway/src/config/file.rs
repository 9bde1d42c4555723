//! Reads the text of a configuration file.

use std::{
    fs::{self, File, FileType},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::Path,
};

/// The most bytes of a configuration.
const LIMIT: u64 = 1 << 20;

/// The byte order mark with which editors of Windows begin a file.
const MARK: char = '\u{feff}';

/// Reads a regular file of at most 1 MiB, without the byte order mark at its start.
///
/// To open a FIFO waits for its writer, and a device may have no end.
///
/// # Errors
///
/// A message that says why the file cannot be read.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    let is_file = |file_type: FileType| match file_type.is_file() {
        true => Ok(()),
        false => Err(format!("is {} and no regular file", name(file_type))),
    };
    is_file(fs::metadata(path).map_err(cannot)?.file_type())?;
    let file = File::open(path).map_err(cannot)?;
    // Another file may have taken the path's place.
    is_file(file.metadata().map_err(cannot)?.file_type())?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() as u64 > LIMIT {
        return Err("is longer than 1 MiB".to_owned());
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("is in UTF-16: save it as UTF-8".to_owned());
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|error| format!("is not UTF-8: {}", error.utf8_error()))?;
    // The mark would be a part of a key, and a column of the first line.
    if text.starts_with(MARK) {
        text.remove(0);
    }
    Ok(text)
}

fn name(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_fifo() {
        "a FIFO"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
