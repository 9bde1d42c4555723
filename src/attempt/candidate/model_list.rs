use http::{HeaderName, HeaderValue, Request, Uri};

use super::{Candidate, CandidateDialect, operation::Operation};

/// The version of Anthropic's API, without which it answers nothing.
const VERSION: (HeaderName, &str) = (HeaderName::from_static("anthropic-version"), "2023-06-01");

impl Candidate {
    /// The request for the models of the candidate's own upstream, `GET {base_url}/models`, with
    /// the candidate's key and headers; `None` without a [`base_url`](Self::base_url).
    ///
    /// A program sends it to find out whether the upstream can be reached and takes the key.
    ///
    /// ```
    /// use tower_agent::Candidate;
    ///
    /// let candidate = Candidate::new("m").base_url("https://host/v1")?.api_key("secret")?;
    /// let request = candidate.models_request().unwrap();
    /// assert_eq!(request.uri(), "https://host/v1/models");
    /// assert_eq!(request.headers()["authorization"], "Bearer secret");
    /// # Ok::<_, tower_agent::attempt::InvalidCandidate>(())
    /// ```
    #[must_use]
    pub fn models_request(&self) -> Option<Request<()>> {
        let base = self.base_url.as_ref()?;
        let is_anthropic =
            self.dialect == CandidateDialect::Anthropic || base.authority() == "api.anthropic.com";
        let url = match is_anthropic {
            // Its list has pages of 20 models otherwise.
            true => format!("{base}/models?limit=1000"),
            false => format!("{base}/models"),
        };
        let mut request = Request::new(());
        *request.uri_mut() = url.parse::<Uri>().ok()?;
        let headers = request.headers_mut();
        if is_anthropic {
            headers.insert(VERSION.0, HeaderValue::from_static(VERSION.1));
        }
        if let Some(key) = &self.api_key {
            let operation = is_anthropic.then_some(Operation::Messages);
            let (name, value) = key.header(operation);
            headers.insert(name, value);
        }
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        Some(request)
    }
}
