mod prompt;
mod valid;
mod volatile;
