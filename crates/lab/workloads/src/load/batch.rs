//! Batch of requests, and the match of replies to requests.

use anyhow::{Result, bail};

use super::dataset::Dataset;
use super::protocol::{Protocol, Reply};

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Read an item's value.
    Get,
    /// Store an item's value.
    Set,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Kind of request.
    pub verb: Verb,
    /// Number of the item that the request is for.
    pub item: u64,
}

/// Result of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The item's value, as the server has it.
    Value(&'a [u8]),
    /// The server does not have the item.
    Missing,
    /// The item was stored.
    Stored,
    /// The server refused, in its own words.
    Refused(&'a str),
}

/// Requests that are sent together.
///
/// Redis answers each request with a reply of its own. memcached gets whole runs; a run is a sequence of neighbouring
/// requests with the same verb. One `get` line reads many items, and memcached answers with those that it has; of many
/// stores, only the last is confirmed. With single requests memcached would make a system call for every reply, and its
/// memory would hardly matter.
///
/// ```text
///   requests   GET a   GET b   GET b   GET c   SET d           SET e          two runs
///   sent       get a b b c\r\n                 set d ... noreply  set e ...
///   received   VALUE a ... VALUE b ... VALUE b ... END          STORED
/// ```
#[derive(Debug)]
pub struct Batch<'a> {
    dataset: &'a Dataset,
    protocol: Protocol,
    requests: Vec<Request>,
    /// The requests as bytes.
    bytes: Vec<u8>,
    /// Index of the first request that is not answered yet.
    next: usize,
    /// End of the run that is being answered, if the protocol answers runs.
    run: Option<usize>,
}

impl<'a> Batch<'a> {
    /// Makes an empty batch.
    #[must_use]
    pub fn new(dataset: &'a Dataset, protocol: Protocol) -> Self {
        Self {
            dataset,
            protocol,
            requests: Vec::new(),
            bytes: Vec::new(),
            next: 0,
            run: None,
        }
    }

    /// Replaces the contents of the batch by these requests.
    pub fn fill(&mut self, requests: impl IntoIterator<Item = Request>) {
        self.requests.clear();
        self.requests.extend(requests);
        self.bytes.clear();
        (self.next, self.run) = (0, None);
        let (dataset, out) = (self.dataset, &mut self.bytes);
        for run in self.requests.chunk_by(|a, b| a.verb == b.verb) {
            let keys = run.iter().map(|request| dataset.key(request.item));
            if run.iter().all(|request| request.verb == Verb::Get) {
                self.protocol.get(keys, out);
                continue;
            }
            for (left, (request, key)) in (0..run.len()).rev().zip(run.iter().zip(keys)) {
                let value = |out: &mut Vec<u8>| dataset.write_value(request.item, out);
                self.protocol
                    .set(&key, dataset.value_size(), value, left == 0, out);
            }
        }
    }

    /// The requests as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns true if every request is answered and no reply is outstanding.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next == self.requests.len() && self.run.is_none()
    }

    /// Takes the next reply, and passes the requests that it answers to `each`, in order.
    ///
    /// # Errors
    /// If it answers no request of the batch; or the error of `each`.
    pub fn take(
        &mut self,
        reply: &Reply<'_>,
        mut each: impl FnMut(Request, Answer<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.protocol == Protocol::Redis {
            return self.take_single(reply, each);
        }
        let rest = self.requests.get(self.next..).unwrap_or_default();
        let end = match (self.run, rest.chunk_by(|a, b| a.verb == b.verb).next()) {
            (Some(end), _) => end,
            (None, Some(run)) => self.next + run.len(),
            (None, None) => bail!("the server sent more replies than it had requests"),
        };
        self.run = Some(end);
        // A run has one verb. All its requests may be answered before its end has come.
        let verb = self.requests[end - 1].verb;
        let answer = match (verb, reply) {
            (Verb::Get, Reply::Value { key, data }) => {
                // Values come in the order of the keys: requests for skipped keys are misses.
                while let Some(request) = self.pop(end) {
                    if key.is_some_and(|key| self.dataset.key(request.item) == *key) {
                        return each(request, Answer::Value(data));
                    }
                    each(request, Answer::Missing)?;
                }
                bail!("the server sent a value that was not asked for");
            }
            (Verb::Get, Reply::End) => Answer::Missing,
            (Verb::Get, Reply::Error(why)) => Answer::Refused(why),
            (Verb::Set, Reply::Stored) => Answer::Stored,
            // The reply does not show which item of the run was refused.
            (Verb::Set, Reply::Error(why)) => bail!("the server refused an item: {why}"),
            (verb, other) => bail!("the server answered a {verb:?} with {other:?}"),
        };
        while let Some(request) = self.pop(end) {
            each(request, answer)?;
        }
        self.run = None;
        Ok(())
    }

    /// Does the same as [`Batch::take`], for a reply that answers one request.
    fn take_single(
        &mut self,
        reply: &Reply<'_>,
        mut each: impl FnMut(Request, Answer<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(request) = self.pop(self.requests.len()) else {
            bail!("the server sent more replies than it had requests");
        };
        let answer = match (request.verb, reply) {
            (_, Reply::Error(why)) => Answer::Refused(why),
            (Verb::Set, Reply::Stored) => Answer::Stored,
            (Verb::Get, Reply::Missing) => Answer::Missing,
            (Verb::Get, Reply::Value { data, .. }) => Answer::Value(data),
            (verb, other) => bail!("the server answered a {verb:?} with {other:?}"),
        };
        each(request, answer)
    }

    /// Removes the next request below `end`, which is answered now.
    fn pop(&mut self, end: usize) -> Option<Request> {
        let request = *self.requests.get(self.next..end)?.first()?;
        self.next += 1;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::ByteCount;

    fn get(item: u64) -> Request {
        Request {
            verb: Verb::Get,
            item,
        }
    }

    fn set(item: u64) -> Request {
        Request {
            verb: Verb::Set,
            item,
        }
    }

    /// Feeds the replies. Returns the answers to the requests as text, and true if the batch is done.
    fn answers(
        protocol: Protocol,
        requests: &[Request],
        replies: &[(&str, Option<u64>)],
    ) -> Result<(String, bool)> {
        let dataset = Dataset::new(10, ByteCount(9), 1)?;
        let mut batch = Batch::new(&dataset, protocol);
        batch.fill(requests.iter().copied());
        let mut text = String::new();
        for (kind, item) in replies {
            let key = item.map(|item| dataset.key(item));
            let reply = match *kind {
                "value" => Reply::Value {
                    key: key.as_ref().map(<[u8; 20]>::as_slice),
                    data: b"v",
                },
                "end" => Reply::End,
                "missing" => Reply::Missing,
                "stored" => Reply::Stored,
                why => Reply::Error(why.into()),
            };
            batch.take(&reply, |request, answer| {
                let mark = match answer {
                    Answer::Value(_) => '=',
                    Answer::Missing => '?',
                    Answer::Stored => '!',
                    Answer::Refused(_) => 'x',
                };
                text.push_str(&format!("{}{mark} ", request.item));
                Ok(())
            })?;
        }
        Ok((text, batch.is_done()))
    }

    #[test]
    fn memcached_answers_runs() {
        let ask = |requests: &[Request], replies: &[_]| {
            answers(Protocol::Memcached, requests, replies).unwrap()
        };
        let run = [get(1), get(2), get(2), get(3), set(4), set(4), get(5)];
        let (text, done) = ask(
            &run,
            &[
                ("value", Some(1)),
                ("value", Some(2)),
                ("value", Some(2)),
                ("end", None),
                ("stored", None),
                ("end", None),
            ],
        );
        assert_eq!(text, "1= 2= 2= 3? 4! 4! 5? ");
        assert!(done);
        // The values of all requests are there, but the end of the run is not.
        let (text, done) = ask(&[get(1)], &[("value", Some(1))]);
        assert_eq!(text, "1= ");
        assert!(!done);
        // The first items are missing; a refusal ends the run.
        let (text, done) = ask(&[get(1), get(2)], &[("value", Some(2)), ("end", None)]);
        assert_eq!((text.as_str(), done), ("1? 2= ", true));
        let (text, done) = ask(
            &[get(1), get(2), get(3)],
            &[("value", Some(1)), ("no memory", None)],
        );
        assert_eq!((text.as_str(), done), ("1= 2x 3x ", true));
    }

    #[test]
    fn redis_answers_one_by_one() {
        let (text, done) = answers(
            Protocol::Redis,
            &[get(1), get(2), set(3), get(4)],
            &[
                ("value", None),
                ("missing", None),
                ("stored", None),
                ("no", None),
            ],
        )
        .unwrap();
        assert_eq!((text.as_str(), done), ("1= 2? 3! 4x ", true));
    }

    #[test]
    fn replies_to_nothing_are_refused() {
        for (protocol, requests, replies) in [
            (Protocol::Memcached, vec![get(1)], vec![("value", Some(2))]),
            (Protocol::Memcached, vec![get(1)], vec![("stored", None)]),
            (Protocol::Memcached, vec![set(1)], vec![("end", None)]),
            (Protocol::Memcached, vec![set(1)], vec![("no memory", None)]),
            (Protocol::Memcached, vec![], vec![("end", None)]),
            (Protocol::Redis, vec![get(1)], vec![("stored", None)]),
            (Protocol::Redis, vec![set(1)], vec![("missing", None)]),
            (
                Protocol::Redis,
                vec![set(1)],
                vec![("stored", None), ("stored", None)],
            ),
        ] {
            assert!(answers(protocol, &requests, &replies).is_err());
        }
    }

    #[test]
    fn memcached_is_asked_run_by_run() {
        let dataset = Dataset::new(10, ByteCount(1), 1).unwrap();
        let mut batch = Batch::new(&dataset, Protocol::Memcached);
        batch.fill([get(1), get(2), set(3), set(3), set(4), get(4)]);
        let text = batch.bytes().escape_ascii().to_string();
        assert_eq!(text.matches("get ").count(), 2, "{text}");
        assert_eq!(text.matches("key:").count(), 6, "{text}");
        assert_eq!(text.matches(" noreply\\r").count(), 2, "{text}");
        assert!(text.rfind("noreply") < text.rfind("set "), "{text}");
        let mut batch = Batch::new(&dataset, Protocol::Redis);
        batch.fill([get(1), get(2), set(3), get(4)]);
        let text = batch.bytes().escape_ascii().to_string();
        assert_eq!(text.matches("GET").count(), 3, "{text}");
        assert_eq!(batch.len(), 4);
    }
}
