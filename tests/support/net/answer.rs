use std::future::Future;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use reqwest::RequestBuilder;
use serde_json::Value;

use super::within;

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header, if the answer has it.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The reason for which the run ended, if the answer names one.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.header("x-terminal-reason")
    }
}

/// An answer whose head came, and whose body is read piece by piece.
///
/// Its drop closes the connection.
#[derive(Debug)]
pub(crate) struct Streaming {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    response: reqwest::Response,
}

impl Streaming {
    /// Reads until the text has this part, which must come: the text that was read for it.
    ///
    /// The text ends with a piece as it came, so more may follow the part.
    pub(crate) async fn until(&mut self, part: &str) -> String {
        let text = self.read(|text| text.contains(part)).await;
        assert!(text.contains(part), "{part:?} does not come: {text:?}");
        text
    }

    /// Reads until the text is enough, or the body ends: that text.
    pub(crate) async fn read(&mut self, enough: impl Fn(&str) -> bool) -> String {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if enough(&text) {
                return text.into_owned();
            }
            match within(self.response.chunk()).await.unwrap() {
                Some(chunk) => bytes.extend(chunk),
                None => return String::from_utf8(bytes).unwrap(),
            }
        }
    }

    /// Reads to the end.
    pub(crate) async fn rest(&mut self) -> String {
        self.read(|_| false).await
    }
}

/// Ways to send a request; each fails the test if there is no answer in time.
pub(crate) trait Ask: Sized {
    /// Sends the request, and reads the answer to its end.
    fn ask(self) -> impl Future<Output = Answer> + Send;

    /// Sends the request, and waits for the head of the answer alone.
    fn open(self) -> impl Future<Output = Streaming> + Send;
}

impl Ask for RequestBuilder {
    async fn ask(self) -> Answer {
        let answer = within(self.send()).await.unwrap();
        Answer {
            status: answer.status(),
            version: answer.version(),
            headers: answer.headers().clone(),
            body: within(answer.bytes()).await.unwrap(),
        }
    }

    async fn open(self) -> Streaming {
        let response = within(self.send()).await.unwrap();
        Streaming {
            status: response.status(),
            headers: response.headers().clone(),
            response,
        }
    }
}
