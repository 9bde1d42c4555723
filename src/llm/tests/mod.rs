mod prompt;
mod valid;
