//! The base URLs of candidates that can hardly be meant.

use http::Uri;

use crate::attempt::without_last_operation;

/// Providers whose API is known to be below one path alone.
///
/// Providers that take requests at several paths, such as DeepSeek, are not among them.
const PROVIDERS: [(&str, &str); 15] = [
    ("api.openai.com", "/v1"),
    ("api.anthropic.com", "/v1"),
    ("openrouter.ai", "/api/v1"),
    ("api.groq.com", "/openai/v1"),
    ("api.mistral.ai", "/v1"),
    ("api.x.ai", "/v1"),
    ("api.together.xyz", "/v1"),
    ("generativelanguage.googleapis.com", "/v1beta/openai"),
    ("api.fireworks.ai", "/inference/v1"),
    ("api.cerebras.ai", "/v1"),
    ("api.deepinfra.com", "/v1/openai"),
    ("api.moonshot.ai", "/v1"),
    ("api.sambanova.ai", "/v1"),
    ("integrate.api.nvidia.com", "/v1"),
    ("dashscope.aliyuncs.com", "/compatible-mode/v1"),
];

/// The URL without the operation at its end, which each request adds; `None` if it has none.
pub(super) fn without_operation(url: &Uri) -> Option<String> {
    let mut path = without_last_operation(url.path())?;
    while let Some(shorter) = without_last_operation(path) {
        path = shorter;
    }
    // Without the operation, too, the path may lack a part of the provider's.
    let known = provider(url).filter(|known| is_part(path, known));
    Some(with_path(url, known.unwrap_or(path)))
}

/// The URL with the path of its provider, if its own lacks a part of that.
pub(super) fn with_provider_path(url: &Uri) -> Option<String> {
    let known = provider(url)?;
    is_part(url.path(), known).then(|| with_path(url, known))
}

fn provider(url: &Uri) -> Option<&'static str> {
    let host = url.host()?;
    let mut known = PROVIDERS.iter();
    let (_, path) = known.find(|(name, _)| host.eq_ignore_ascii_case(name))?;
    Some(path)
}

/// Whether a path lacks a part of the provider's: its end, or what comes before `/v1`.
fn is_part(path: &str, known: &str) -> bool {
    let path = path.trim_end_matches('/');
    let rest = known.strip_prefix(path);
    path == "/v1" && known != "/v1" || rest.is_some_and(|rest| rest.starts_with('/'))
}

fn with_path(url: &Uri, path: &str) -> String {
    let scheme = url.scheme_str().unwrap_or("https");
    let authority = url.authority().map_or("", |authority| authority.as_str());
    format!("{scheme}://{authority}{path}")
}
