//! Calls that fail, in front of an upstream that counts.

mod after_the_end;
mod all_failed;
mod bytes;
mod choices;
mod counted;
mod credentials;
mod halves;
mod left_alone;
mod nested;
mod redirects;
mod served;
mod simulated;
mod sole;
