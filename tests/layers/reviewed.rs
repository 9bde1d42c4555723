//! What a cold review of repeats and fallbacks found, each in its smallest form.

mod answers;
mod candidates;
mod counted;
mod ended;
mod errors;
mod turns;
