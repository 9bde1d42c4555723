mod counts;
mod key;
