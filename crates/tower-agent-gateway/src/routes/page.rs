//! The operator's page: its files, which are part of the program.
//!
//! The files need the checks of host and origin alone, because a browser sends no token when a person
//! opens an address. All that the page shows it asks of the operator's routes, with the token.

use std::sync::LazyLock;

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use ring::digest::{SHA256, digest};

use super::unknown_route;

/// What a browser may load for the page, and do in it: files of this server alone.
///
/// `require-trusted-types-for` makes it an error to put a text into the page as HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The file at `/ui`.
const INDEX: &str = "index.html";

/// A file of `ui/`, by its path there.
struct PageFile {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($kind:ident $path:literal),* $(,)?) => {
        [$(PageFile {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../ui/", $path)),
        }),*]
    };
}

static FILES: &[PageFile] = &files![
    HTML "index.html",
    STYLE "style.css",
    SVG "icon.svg",
    SCRIPT "app.js",
    SCRIPT "actions.js",
    SCRIPT "api.js",
    SCRIPT "dialog.js",
    SCRIPT "ends.js",
    SCRIPT "events.js",
    SCRIPT "format.js",
    SCRIPT "html.js",
    SCRIPT "overview.js",
    SCRIPT "run.js",
    SCRIPT "runs.js",
    SCRIPT "state.js",
    SCRIPT "timeline.js",
    SCRIPT "vendor/htm.js",
    SCRIPT "vendor/preact.js",
    SCRIPT "vendor/preact-hooks.js",
    SCRIPT "vendor/signals.js",
    SCRIPT "vendor/signals-core.js",
    SCRIPT "vendor/uplot.js",
    STYLE "vendor/uplot.css",
];

/// The entity tag of each of [`FILES`].
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |file: &PageFile| {
        let digest = digest(&SHA256, file.bytes);
        let half = digest.as_ref().iter().take(16);
        let hex: String = half.map(|byte| format!("{byte:02x}")).collect();
        // Quotes and hexadecimal digits are a valid value.
        HeaderValue::try_from(format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""))
    };
    FILES.iter().map(tag).collect()
});

/// The routes of the files.
pub(super) fn routes() -> Router {
    Router::new()
        .route("/ui", get(index))
        // The page names its files and routes relative to `/ui`, so that it works below a prefix of a
        // proxy.
        .route("/ui/", get(|| async { Redirect::permanent("../ui") }))
        .route("/ui/{*path}", get(file))
}

async fn index(headers: HeaderMap) -> Response {
    serve(INDEX, &headers).unwrap_or_else(|| StatusCode::NOT_FOUND.into_response())
}

async fn file(request: Request) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix("/ui/").unwrap_or_default();
    match serve(path, request.headers()) {
        Some(answer) => answer,
        None => unknown_route::not_found(request).await,
    }
}

/// The file of this path, or 304 to a browser that has it; `None` if there is no such file.
fn serve(path: &str, headers: &HeaderMap) -> Option<Response> {
    let at = FILES.iter().position(|file| file.path == path)?;
    let (file, tag) = (FILES.get(at)?, TAGS.get(at)?);
    let mut answer = match has(headers, tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, file.kind)], file.bytes).into_response(),
    };
    let fixed: [(HeaderName, &'static str); 5] = [
        // The browser asks each time whether its copy is of this version of the gateway.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    let headers = answer.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(answer)
}

/// Whether the browser has the file of this tag.
fn has(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).into_iter();
    let mut known = known.filter_map(|value| value.to_str().ok());
    known.any(|value| {
        let mut tags = value.split(',').map(str::trim);
        // A proxy that compresses makes the tag a weak one.
        tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
    })
}

#[cfg(test)]
mod tests {
    //! covers: H11

    use std::{collections::BTreeSet, fs, path::Path};

    use serde_json::Value;

    use super::*;

    /// The files below a folder that a browser may ask for, by their paths.
    fn below(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                below(&entry.path(), &format!("{name}/"), found);
            } else if [".html", ".css", ".svg", ".js"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                found.insert(name);
            }
        }
    }

    fn ui() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/ui"))
    }

    #[test]
    fn the_files_of_the_folder_are_served_and_no_others() {
        let mut found = BTreeSet::new();
        below(ui(), "", &mut found);
        let served: BTreeSet<_> = FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(served, found);
    }

    /// A library that was edited by hand, or renewed without its record, fails here.
    #[test]
    fn the_vendored_files_are_those_that_the_record_names() {
        let record = fs::read_to_string(ui().join("vendor/vendor.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        let mut vendored = BTreeSet::new();
        for (name, entry) in record.as_object().unwrap() {
            let file = fs::read(ui().join("vendor").join(name)).unwrap();
            let digest = digest(&SHA256, &file);
            let hex: String = digest
                .as_ref()
                .iter()
                .map(|it| format!("{it:02x}"))
                .collect();
            assert_eq!(entry["sha256"], hex, "{name}");
            let license = entry["license_file"].as_str().unwrap();
            assert!(ui().join("vendor").join(license).is_file(), "{license}");
            vendored.insert(format!("vendor/{name}"));
        }
        let served = FILES.iter().map(|file| file.path.to_owned());
        let served: BTreeSet<_> = served.filter(|path| path.starts_with("vendor/")).collect();
        assert_eq!(served, vendored);
    }

    /// People read the page's own files.
    #[test]
    fn a_file_of_our_own_has_less_than_300_lines() {
        for file in FILES
            .iter()
            .filter(|file| !file.path.starts_with("vendor/"))
        {
            let lines = file.bytes.iter().filter(|byte| **byte == b'\n').count();
            assert!(lines < 300, "{} has {lines} lines", file.path);
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_not_sent_it_again() {
        let tag = HeaderValue::from_static("\"a1\"");
        for (sent, is_known) in [
            ("\"a1\"", true),
            ("W/\"a1\"", true),
            ("\"b2\", \"a1\"", true),
            ("*", true),
            ("\"b2\"", false),
            ("a1", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static(sent));
            assert_eq!(has(&headers, &tag), is_known, "{sent}");
        }
        assert!(!has(&HeaderMap::new(), &tag));
    }
}
