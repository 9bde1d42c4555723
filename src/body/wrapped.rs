/// Names a layer's future and body, which are the common ones under its policy:
/// users name a type of the layer, and its policy stays private.
macro_rules! wrapped {
    (
        $(#[$future_doc:meta])* pub struct $future:ident;
        $(#[$body_doc:meta])* pub struct $body:ident;
        policy $policy:ty;
    ) => {
        pin_project_lite::pin_project! {
            $(#[$future_doc])*
            #[derive(Debug)]
            #[must_use = "futures do nothing unless polled"]
            pub struct $future<F> {
                #[pin]
                inner: $crate::body::SupervisedFuture<F, $policy>,
            }
        }

        pin_project_lite::pin_project! {
            $(#[$body_doc])*
            #[derive(Debug)]
            pub struct $body<B> where B: http_body::Body {
                #[pin]
                inner: $crate::body::SupervisedBody<B, $policy>,
            }
        }

        impl<F> From<$crate::body::SupervisedFuture<F, $policy>> for $future<F> {
            fn from(inner: $crate::body::SupervisedFuture<F, $policy>) -> Self {
                Self { inner }
            }
        }

        impl<F, B, E> std::future::Future for $future<F>
        where
            F: std::future::Future<Output = Result<http::Response<B>, E>>,
            E: Into<$crate::BoxError>,
            B: http_body::Body<Data = bytes::Bytes>,
            B::Error: Into<$crate::BoxError>,
        {
            type Output = Result<http::Response<$body<B>>, $crate::BoxError>;

            fn poll(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                let answer = self.project().inner.poll(cx);
                answer.map_ok(|answer| answer.map(|inner| $body { inner }))
            }
        }

        impl<B> http_body::Body for $body<B>
        where
            B: http_body::Body<Data = bytes::Bytes>,
            B::Error: Into<$crate::BoxError>,
        {
            type Data = bytes::Bytes;
            type Error = $crate::BoxError;

            fn poll_frame(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
                self.project().inner.poll_frame(cx)
            }

            fn is_end_stream(&self) -> bool {
                self.inner.is_end_stream()
            }

            fn size_hint(&self) -> http_body::SizeHint {
                self.inner.size_hint()
            }
        }
    };
}

pub(crate) use wrapped;
