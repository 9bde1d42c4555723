//! Access to the routes: callers by key, the operator by token or address, pages by origin.

mod callers;
mod cors;
mod operator;
mod origin;
#[cfg(test)]
mod tests;

use http::{HeaderMap, header};

pub(crate) use self::{
    callers::{Caller, Callers, owner_of},
    cors::cors,
    operator::Operator,
    origin::Pages,
};

/// The tokens that are presented as `authorization: Bearer TOKEN`.
fn bearers(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::AUTHORIZATION).into_iter();
    values.filter_map(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    })
}
