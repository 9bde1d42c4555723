//! Events that only say that the connection is alive.

/// Whether an event of this type or name is a sign of life: a ping, a heartbeat or a keep-alive,
/// also behind a prefix such as that of `response.heartbeat`.
pub(crate) fn is_heartbeat(kind: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [
        b"ping",
        b"heartbeat",
        b"heart_beat",
        b"keepalive",
        b"keep_alive",
        b"keep-alive",
    ];
    let name = kind.rsplit(|byte| *byte == b'.').next().unwrap_or(kind);
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether an event's data is an object without members, which says no more than a comment.
pub(crate) fn is_empty_object(data: &[u8]) -> bool {
    let inner = data.trim_ascii();
    let inner = inner
        .strip_prefix(b"{")
        .and_then(|it| it.strip_suffix(b"}"));
    inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}
