//! `[stop]`: the phrases by which a user ends the other runs of a session.

use super::error::Problem;
use super::file;

/// Resolves the phrases. Each needs a letter or a digit, as no other phrase would ever match.
pub(super) fn phrases(table: file::StopTable) -> Result<Vec<String>, Problem> {
    let span = table.phrases.span();
    let phrases = table.phrases.into_inner();
    if phrases.is_empty() {
        let message = "stop.phrases is empty: to have none, leave [stop] out";
        return Err(Problem::new(message).at(span));
    }
    let phrase = |phrase: toml::Spanned<String>| {
        let text = phrase.get_ref();
        if text.contains(char::is_alphanumeric) {
            return Ok(text.clone());
        }
        let message = format!("stop.phrases holds {text:?}, which has no letter and no digit");
        Err(Problem::new(message).at(phrase.span()))
    };
    phrases.into_iter().map(phrase).collect()
}
