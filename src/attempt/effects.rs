/// In a request: what it did has effects that must not be had twice. The call is
/// neither repeated nor moved to another candidate once it failed.
///
/// ```
/// use tower_agent::attempt::SideEffects;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(SideEffects);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideEffects;
