//! The context of a span. It travels with a message to the span of the message's handler, in another process
//! or in this one.
//!
//! It is the `traceparent` of W3C's Trace Context: trace, span and flags. Only a sampled span has a context
//! here: others send none, so no process records a trace that its first span has decided not to record.
//! `tracestate` does not travel.
//!
//! Without the feature `otel` there is never a context, and the type has no size.
//!
//! Source: <https://www.w3.org/TR/trace-context/>.

use serde::{Deserialize, Serialize};
use tracing::Span;

/// Bytes of a context behind a body: trace 16, span 8, flags 1, and 7 zeros.
pub const CONTEXT_BYTES: usize = 32;

/// The context of a sampled OpenTelemetry span, or none. Without the feature `otel` there is never one.
///
/// Messages to actors and items of pipelines carry it by themselves. A message that is read from a
/// [`Channel`](crate::actor::Channel), or that travels by other means, may have it as a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceContext {
    #[cfg(feature = "otel")]
    #[serde(default)]
    sampled: Option<Sampled>,
}

#[cfg(feature = "otel")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Sampled {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

impl TraceContext {
    /// Returns the context of the span that this code runs in.
    #[inline]
    pub fn current() -> Self {
        #[cfg(feature = "otel")]
        return otel::current();
        #[cfg(not(feature = "otel"))]
        TraceContext {}
    }

    /// Returns whether there is no context.
    #[inline]
    pub fn is_none(&self) -> bool {
        #[cfg(feature = "otel")]
        return self.sampled.is_none();
        #[cfg(not(feature = "otel"))]
        true
    }

    /// Makes a span under this one. If there is no context, `span` is not called, and the result is none.
    #[inline]
    #[must_use]
    pub fn child(&self, span: impl FnOnce() -> Span) -> Span {
        #[cfg(feature = "otel")]
        if let Some(sampled) = self.sampled {
            return otel::under(sampled, span());
        }
        let _ = span;
        Span::none()
    }

    /// Makes a span that may begin a trace. Without the feature `otel`, `span` is not called, and the result
    /// is none.
    #[inline]
    #[must_use]
    pub fn root(span: impl FnOnce() -> Span) -> Span {
        if cfg!(feature = "otel") { span() } else { Span::none() }
    }

    /// Puts the context behind a body, within `most` bytes. Returns whether it is there.
    #[inline]
    pub(crate) fn append(&self, body: &mut Vec<u8>, most: usize) -> bool {
        #[cfg(feature = "otel")]
        if let Some(Sampled { trace, span, flags }) =
            self.sampled.filter(|_| body.len() + CONTEXT_BYTES <= most)
        {
            body.extend_from_slice(&trace);
            body.extend_from_slice(&span);
            body.extend_from_slice(&[flags, 0, 0, 0, 0, 0, 0, 0]);
            return true;
        }
        let _ = (body, most);
        false
    }

    /// Takes the context from behind a body that has one. A process may lie about it. Bytes that are no
    /// context count as none, and the worst that a liar can do is to name another's span (WIRE-1).
    #[inline]
    pub(crate) fn split(body: &[u8]) -> (&[u8], Self) {
        let Some((body, context)) = body.split_last_chunk::<CONTEXT_BYTES>() else {
            return (body, Self::default());
        };
        #[cfg(feature = "otel")]
        return (body, otel::read(context));
        #[cfg(not(feature = "otel"))]
        {
            let _ = context;
            (body, TraceContext {})
        }
    }
}

#[cfg(feature = "otel")]
mod otel {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use super::{CONTEXT_BYTES, Sampled, TraceContext};

    pub(super) fn current() -> TraceContext {
        let span = Span::current();
        // Without a subscriber there is nothing to look up.
        if span.is_none() {
            return TraceContext::default();
        }
        let context = span.context();
        let span = context.span();
        let context = span.span_context();
        let sampled = (context.is_valid() && context.is_sampled()).then(|| Sampled {
            trace: context.trace_id().to_bytes(),
            span: context.span_id().to_bytes(),
            flags: context.trace_flags().to_u8(),
        });
        TraceContext { sampled }
    }

    pub(super) fn under(sampled: Sampled, span: Span) -> Span {
        let parent = SpanContext::new(
            TraceId::from_bytes(sampled.trace),
            SpanId::from_bytes(sampled.span),
            TraceFlags::new(sampled.flags),
            true,
            TraceState::default(),
        );
        // The span stays plain if the process's subscriber has no layer for OpenTelemetry.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
        span
    }

    pub(super) fn read(bytes: &[u8; CONTEXT_BYTES]) -> TraceContext {
        let (trace, rest) = bytes.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
        let (span, rest) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let flags = rest.first().copied().unwrap_or(0);
        let is_one = *trace != [0; 16] && *span != [0; 8] && flags & 1 != 0;
        let sampled = is_one.then_some(Sampled { trace: *trace, span: *span, flags });
        TraceContext { sampled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_none_sends_none_and_a_short_body_is_left() {
        let mut body = vec![1, 2, 3];
        assert!(!TraceContext::current().append(&mut body, 1000));
        assert_eq!((TraceContext::split(&body), body.len()), ((&[1, 2, 3][..], TraceContext::default()), 3));
        assert!(TraceContext::default().child(|| unreachable!("there is no context")).is_none());
    }

    #[cfg(feature = "otel")]
    #[test]
    fn a_context_comes_back_and_what_is_none_is_none() {
        let sampled = Sampled { trace: [7; 16], span: [9; 8], flags: 1 };
        let context = TraceContext { sampled: Some(sampled) };
        let mut body = vec![1, 2, 3];
        assert!(!context.append(&mut body, 34), "it does not fit");
        assert!(context.append(&mut body, 35));
        assert_eq!(TraceContext::split(&body), (&[1, 2, 3][..], context));
        for (at, value) in [(0..16, 0), (16..24, 0), (24..25, 2)] {
            let mut forged = body.clone();
            forged[3..][at].fill(value);
            assert!(TraceContext::split(&forged).1.is_none());
        }
    }
}
