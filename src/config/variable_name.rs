//! Tells names of environment variables from secrets that were written in their place.

/// What a text is that should be the name of an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableName {
    /// An error may show it.
    Shown,
    /// A name that may as well be a secret.
    Hidden,
    /// No shell could set a variable of this name.
    Invalid,
}

/// The beginnings of providers' keys that could be names.
const KEYS: [&str; 6] = ["AIza", "fw_", "github_pat_", "gsk_", "hf_", "r8_"];

/// Names of this length and longer that are not in upper case may be keys: hexadecimal or base64.
const LONG: usize = 16;

pub(super) fn of(text: &str) -> VariableName {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let starts = text.bytes().next();
    let is_name = starts.is_some_and(|first| !first.is_ascii_digit()) && text.bytes().all(is_part);
    if !is_name || KEYS.iter().any(|start| text.starts_with(start)) {
        return VariableName::Invalid;
    }
    let has_lower = text.bytes().any(|byte| byte.is_ascii_lowercase());
    match has_lower && text.len() >= LONG {
        true => VariableName::Hidden,
        false => VariableName::Shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_and_what_may_be_a_key_is_not() {
        for (text, expected) in [
            ("OPENAI_API_KEY", VariableName::Shown),
            ("A_NAME_OF_MANY_PARTS_AND_2_NUMBERS_50", VariableName::Shown),
            ("_key", VariableName::Shown),
            ("my_key", VariableName::Shown),
            ("my_provider_api_key", VariableName::Hidden),
            ("a1b2c3d4e5f60718293a4b5c6d7e8f90", VariableName::Hidden),
            ("tGzv3JOkF0XG5Qx2TlKWIA7mB9cDqRyE", VariableName::Hidden),
            ("9f86d081884c7d659a2feaa0c55ad015", VariableName::Invalid),
            ("sk-proj-1", VariableName::Invalid),
            ("hf_abc", VariableName::Invalid),
            ("coder:sk-1", VariableName::Invalid),
            ("redis://:password@host", VariableName::Invalid),
            ("", VariableName::Invalid),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
