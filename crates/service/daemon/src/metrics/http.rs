//! A minimal server of HTTP/1.1 (RFC 9112) for scrapers: one request, one answer, and the connection ends.

use std::sync::Arc;

use httparse::{EMPTY_HEADER, Request, Status};

use super::Format;
use crate::clients::{ClientProtocol, Reply, RequestEnd, Requester};

/// Maximum length of a request's head in bytes.
pub(super) const LONGEST_HEAD: usize = 8192;

/// Maximum number of header fields of a request.
const MOST_FIELDS: usize = 64;

/// Path of the metrics.
const PATH: &str = "/metrics";

/// Answer at `/`.
const GREETING: &str = "Superhue's daemon: its metrics are at /metrics.\n";

/// The protocol, with the function that makes a page.
pub(super) struct Http<'a>(pub(super) &'a mut dyn FnMut(Format) -> Arc<str>);

/// Reason for refusing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Malformed,
    NotFound,
    Method,
    TooLong,
    TooMany,
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
struct HttpRequest {
    /// The format of the page; `None` for the greeting.
    page: Option<Format>,
    /// True if only the head is wanted.
    head_only: bool,
}

impl ClientProtocol for Http<'_> {
    fn end(&self, said: &[u8], known: usize) -> Option<usize> {
        // The end may begin in the known part. Some clients end their lines without a CR.
        let from = known.saturating_sub(3);
        let news = said.get(from..).unwrap_or_default();
        let end = |mark: &[u8]| {
            let at = news.windows(mark.len()).position(|it| it == mark)?;
            Some(from + at + mark.len())
        };
        match (end(b"\r\n\r\n"), end(b"\n\n")) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn answer(&mut self, _: Requester, request: &[u8], ended: RequestEnd) -> Reply {
        let wanted = match ended {
            RequestEnd::Whole => read(request),
            RequestEnd::Closed => Err(Refusal::Malformed),
            RequestEnd::TooLong => Err(Refusal::TooLong),
        };
        match wanted {
            Ok(HttpRequest { page, head_only }) => {
                let (kind, body) = match page {
                    Some(format) => (format.content_type(), (self.0)(format)),
                    None => (TEXT, GREETING.into()),
                };
                let head = head("200 OK", kind, body.len(), "Vary: Accept\r\n");
                let body = if head_only { "".into() } else { body };
                Reply {
                    head,
                    body,
                    ..Reply::default()
                }
            }
            Err(refusal) => Reply {
                head: refusal.written(),
                refused: true,
                ..Reply::default()
            },
        }
    }

    // No answer comes with a lease.
    fn ended(&mut self, _: u64) {}

    fn too_many(&self) -> Vec<u8> {
        Refusal::TooMany.written()
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn head(status: &str, kind: &str, length: usize, more: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    );
    head.into_bytes()
}

impl Refusal {
    fn written(self) -> Vec<u8> {
        let (status, text, more) = match self {
            Self::Malformed => ("400 Bad Request", "This is no request.\n", ""),
            Self::NotFound => ("404 Not Found", "Metrics are at /metrics.\n", ""),
            Self::Method => (
                "405 Method Not Allowed",
                "Metrics can only be read: GET or HEAD.\n",
                "Allow: GET, HEAD\r\n",
            ),
            Self::TooLong => (
                "431 Request Header Fields Too Large",
                "The request is too long.\n",
                "",
            ),
            Self::TooMany => (
                "503 Service Unavailable",
                "Too many connections at a time: try again.\n",
                "Retry-After: 5\r\n",
            ),
        };
        let mut written = head(status, TEXT, text.len(), more);
        written.extend_from_slice(text.as_bytes());
        written
    }
}

/// Parses a request.
fn read(request: &[u8]) -> Result<HttpRequest, Refusal> {
    let mut fields = [EMPTY_HEADER; MOST_FIELDS];
    let mut parsed = Request::new(&mut fields);
    match parsed.parse(request) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err(Refusal::Malformed),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLong),
        Err(_) => return Err(Refusal::Malformed),
    }
    let head_only = match parsed.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Refusal::Method),
    };
    let accepted = parsed.headers.iter();
    let accepted = accepted.filter(|field| field.name.eq_ignore_ascii_case("accept"));
    let values = accepted.map(|field| String::from_utf8_lossy(field.value));
    let accept: Vec<_> = values.collect();
    let page = match path(parsed.path.unwrap_or_default()) {
        PATH => Some(Format::wanted(&accept.join(","))),
        "/" => None,
        _ => return Err(Refusal::NotFound),
    };
    Ok(HttpRequest { page, head_only })
}

/// Returns the path of a request's target, which may be a whole address and have a query.
fn path(target: &str) -> &str {
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        None => target,
    };
    path.split(['?', '#']).next().unwrap_or(path)
}

impl Format {
    /// Returns the better format of those that the field `Accept` allows (RFC 9110, 12.5.1).
    fn wanted(accept: &str) -> Self {
        let (mut openmetrics, mut plain) = (0.0_f64, 0.0_f64);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut weight, mut known) = (1.0, true);
            for part in parts {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                let value = value.trim().trim_matches('"');
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => weight = value.parse().unwrap_or(0.0),
                    "version" => known = value.starts_with("1.") || value == "1",
                    _ => {}
                }
            }
            match kind.as_str() {
                "application/openmetrics-text" if known => openmetrics = openmetrics.max(weight),
                "text/plain" | "text/*" | "*/*" => plain = plain.max(weight),
                _ => {}
            }
        }
        if openmetrics > 0.0 && openmetrics >= plain {
            Self::OpenMetrics
        } else {
            Self::Plain
        }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(request: &str) -> Result<HttpRequest, Refusal> {
        read(request.as_bytes())
    }

    fn page(format: Format) -> Result<HttpRequest, Refusal> {
        Ok(HttpRequest {
            page: Some(format),
            head_only: false,
        })
    }

    #[test]
    fn requests_are_read_or_refused() {
        let plain = || page(Format::Plain);
        assert_eq!(wants("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), plain());
        assert_eq!(wants("GET /metrics?a=b HTTP/1.0\n\n"), plain());
        let absolute = "GET http://127.0.0.1:9119/metrics HTTP/1.1\r\n\r\n";
        assert_eq!(wants(absolute), plain());
        let head = wants("HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(head.head_only);
        assert_eq!(wants("GET / HTTP/1.1\r\n\r\n").unwrap().page, None);
        for (request, expected) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", Refusal::Method),
            ("GET /metric HTTP/1.1\r\n\r\n", Refusal::NotFound),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Refusal::NotFound),
            ("GET /../metrics HTTP/1.1\r\n\r\n", Refusal::NotFound),
            ("GET http:// HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET /metrics\r\n\r\n", Refusal::Malformed),
            ("GET /metrics HTTP/2.0\r\n\r\n", Refusal::Malformed),
            ("PRI * HTTP/2.0\r\n\r\n", Refusal::Malformed),
            (
                "GET /metrics HTTP/1.1\r\nno field\r\n\r\n",
                Refusal::Malformed,
            ),
            ("\u{16}\u{3}\u{1}\r\n\r\n", Refusal::Malformed),
        ] {
            let got = wants(request);
            // Without a host the path is the root.
            if request.starts_with("GET http:// ") {
                assert!(got.is_ok_and(|wanted| wanted.page.is_none()));
                continue;
            }
            assert_eq!(got, Err(expected), "{request:?}");
        }
        let fields = "a: b\r\n".repeat(MOST_FIELDS + 1);
        let many = format!("GET /metrics HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(wants(&many), Err(Refusal::TooLong));
    }

    #[test]
    fn the_end_of_a_head_is_found_wherever_it_is_cut() {
        let request = b"GET / HTTP/1.1\r\nA: b\r\n\r\nGET";
        let mut none = |_: Format| -> Arc<str> { "".into() };
        let http = Http(&mut none);
        let end = request.len() - 3;
        for first in 0..end {
            assert_eq!(http.end(&request[..first], 0), None, "{first}");
            for second in first..end {
                assert_eq!(http.end(&request[..second], first), None);
            }
            assert_eq!(http.end(request, first), Some(end), "{first}");
        }
        assert_eq!(http.end(b"GET /\n\nx\r\n\r\n", 0), Some(7));
    }

    #[test]
    fn the_format_is_negotiated() {
        for (accept, expected) in [
            ("", Format::Plain),
            ("*/*", Format::Plain),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Plain),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                // Prometheus 2.42.
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text; version=0.0.1; q=0.75, text/plain; q=0.5",
                Format::Plain,
            ),
            (
                "text/plain, application/openmetrics-text;q=0.9",
                Format::Plain,
            ),
            (
                "Application/OpenMetrics-Text; Version=\"1.0.0\" ;q=0.6,text/plain;q=0.5",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text;q=0,*/*;q=0", Format::Plain),
            (
                "application/openmetrics-text;q=NaN,text/plain;q=x",
                Format::Plain,
            ),
        ] {
            assert_eq!(Format::wanted(accept), expected, "{accept}");
        }
    }
}
