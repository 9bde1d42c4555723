use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Positions in what several gateways have: their runs, or their events.
///
/// As a text it is `ID~POSITION~ID~POSITION`, by the ids of the gateways in the store. A process has an id
/// that none had before, so the positions of one that is gone mean nothing to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Positions(BTreeMap<String, u64>);

/// The error for a text that is not one of positions.
#[derive(Debug)]
pub(crate) struct InvalidPositions;

/// The most bytes of a text: more gateways than share a store.
const LONGEST: usize = 8192;

impl Positions {
    pub(crate) fn of(&self, gateway: &str) -> Option<u64> {
        self.0.get(gateway).copied()
    }

    pub(crate) fn set(&mut self, gateway: &str, position: u64) {
        match self.0.get_mut(gateway) {
            Some(known) => *known = position,
            None => drop(self.0.insert(gateway.to_owned(), position)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets the gateways that are not among these.
    pub(crate) fn retain(&mut self, gateways: impl Fn(&str) -> bool) {
        self.0.retain(|gateway, _| gateways(gateway));
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (gateway, position)) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { "~" };
            write!(f, "{between}{gateway}~{position}")?;
        }
        Ok(())
    }
}

impl FromStr for Positions {
    type Err = InvalidPositions;

    fn from_str(text: &str) -> Result<Self, InvalidPositions> {
        let is_id = |id: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !id.is_empty() && id.bytes().all(is_part)
        };
        let mut positions = Self::default();
        let mut texts = text.split('~');
        while let (Some(id), true) = (texts.next(), text.len() <= LONGEST) {
            let position = texts.next().ok_or(InvalidPositions)?;
            // `u64::from_str` also takes a sign.
            let is_number = position.bytes().all(|byte| byte.is_ascii_digit());
            let position = position.parse().ok().filter(|_| is_number && is_id(id));
            let position = position.ok_or(InvalidPositions)?;
            if positions.0.insert(id.to_owned(), position).is_some() {
                return Err(InvalidPositions);
            }
        }
        match positions.len() {
            0 => Err(InvalidPositions),
            _ => Ok(positions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back_as_they_were() {
        for text in ["a-1~0", "a-1~17~b.c_2~18446744073709551615"] {
            let positions: Positions = text.parse().unwrap();
            assert_eq!(positions.to_string(), text);
        }
        let longest = format!("{}~1", "a".repeat(LONGEST));
        for text in [
            "",
            "~",
            "17",
            "a",
            "a~",
            "a~x",
            "a~-1",
            "a~+1",
            "~1",
            "a~1~",
            "a~1~b",
            "a~1~a~2",
            "a b~1",
            "a\"~1",
            "a~18446744073709551616",
            &longest,
        ] {
            assert!(text.parse::<Positions>().is_err(), "{text:.80}");
        }
    }
}
