//! Request bodies of tests as one type.

use std::{any::Any, fmt};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower_agent::{BoxError, ReplayBody};

/// A request body that has yet to be read.
pub(crate) type Upload = UnsyncBoxBody<Bytes, BoxError>;

/// A request body between two layers of a [`Stack`](super::Stack).
///
/// A `ReplayBody` stays one, as layers treat it otherwise than a body that they buffer.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Replay(ReplayBody),
    Upload(Upload),
}

impl From<ReplayBody> for RequestBody {
    fn from(body: ReplayBody) -> Self {
        Self::Replay(body)
    }
}

impl From<Upload> for RequestBody {
    fn from(body: Upload) -> Self {
        Self::Upload(body)
    }
}

impl From<Full<Bytes>> for RequestBody {
    fn from(body: Full<Bytes>) -> Self {
        Self::Upload(body.map_err(Into::into).boxed_unsync())
    }
}

impl From<()> for RequestBody {
    fn from((): ()) -> Self {
        Full::default().into()
    }
}

/// The text of a body that is there at once.
pub(super) fn text_of<B: 'static>(body: B) -> Option<String> {
    let mut body = Some(body);
    let body: &mut dyn Any = &mut body;
    if let Some(body) = body.downcast_mut::<Option<ReplayBody>>() {
        return collect(body.take()?);
    }
    if let Some(body) = body.downcast_mut::<Option<Full<Bytes>>>() {
        return collect(body.take()?);
    }
    if let Some(body) = body.downcast_mut::<Option<Upload>>() {
        return collect(body.take()?);
    }
    body.is::<Option<()>>().then(String::new)
}

fn collect<B: Body<Error: fmt::Debug>>(body: B) -> Option<String> {
    let body = body.collect().now_or_never()?.ok()?;
    String::from_utf8(body.to_bytes().to_vec()).ok()
}
