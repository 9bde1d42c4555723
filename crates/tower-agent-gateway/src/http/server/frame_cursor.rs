/// Follows the frames of a WebSocket: how far the next part of a head or a payload reaches.
///
/// It only bounds reads. If it is wrong about a peer that breaks the protocol, reads are short.
#[derive(Debug, Default)]
pub(super) struct FrameCursor {
    /// The bytes of a head that were read, and their number.
    head: ([u8; 14], usize),
    /// The bytes of a payload that are still to come.
    payload: u64,
}

impl FrameCursor {
    /// The most bytes that the next read may take: at least one.
    pub(super) fn most(&self) -> usize {
        match self.payload {
            0 => self.head_len() - self.head.1,
            payload => usize::try_from(payload).unwrap_or(usize::MAX),
        }
    }

    /// Moves on by bytes that were read.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.payload > 0 {
                let passed = self.most().min(bytes.len());
                self.payload -= passed as u64;
                bytes = &bytes[passed..];
                continue;
            }
            let (head, read) = &mut self.head;
            head[*read] = *first;
            *read += 1;
            bytes = rest;
            if self.head.1 == self.head_len() {
                self.payload = self.payload_len();
                self.head.1 = 0;
            }
        }
    }

    /// The length of the head, as far as its bytes tell.
    fn head_len(&self) -> usize {
        let ([_, second, ..], read) = self.head;
        if read < 2 {
            return 2;
        }
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        2 + extended + mask
    }

    fn payload_len(&self) -> u64 {
        let head = &self.head.0;
        let sum = |bytes: &[u8]| {
            let bytes = bytes.iter();
            bytes.fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
        };
        match head[1] & 0x7f {
            126 => sum(&head[2..4]),
            127 => sum(&head[2..10]),
            len => len.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ends_where_a_head_or_a_payload_does() {
        let short = [&[0x81, 0x80 | 3, 1, 2, 3, 4][..], b"abc"].concat();
        let middle = [&[0x82, 0x80 | 126, 1, 0, 1, 2, 3, 4][..], &[0; 256]].concat();
        let long = [&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0][..], &[0; 65536]].concat();
        let empty = [0x8a, 0x80, 1, 2, 3, 4].to_vec();
        let all = [short, middle, long, empty].concat();
        let (mut cursor, mut at, mut reads) = (FrameCursor::default(), 0, Vec::new());
        while at < all.len() {
            let most = cursor.most();
            reads.push(most);
            cursor.pass(&all[at..at + most]);
            at += most;
        }
        assert_eq!(reads, [2, 4, 3, 2, 6, 256, 2, 8, 65536, 2, 4]);
        // In one piece, or byte by byte, it comes to the same place.
        for size in [1, 5, all.len()] {
            let mut cursor = FrameCursor::default();
            all.chunks(size).for_each(|part| cursor.pass(part));
            assert_eq!(cursor.most(), 2);
        }
    }

    #[test]
    fn a_length_that_no_memory_has_is_bounded() {
        let mut cursor = FrameCursor::default();
        cursor.pass(&[0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(cursor.most(), usize::MAX);
        cursor.pass(&[0; 10]);
        assert_eq!(cursor.most(), usize::MAX - 10);
    }
}
