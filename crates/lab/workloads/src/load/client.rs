//! The threads of a load, one per connection, and their results.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use hdrhistogram::Histogram;

use super::batch::{Answer, Batch, Request, Verb};
use super::connection::Connection;
use super::dataset::{Chooser, Dataset};
use super::protocol::Protocol;

/// Longest latency that the histogram distinguishes: a minute, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Significant digits of a latency.
const DIGITS: u8 = 3;

/// End of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEnd {
    /// After this number of requests on all connections together.
    Requests(u64),
    /// After this time.
    Elapsed(Duration),
}

/// Server, items and shape of a load.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Address at which the server listens.
    pub address: SocketAddr,
    /// Protocol of the server.
    pub protocol: Protocol,
    /// The items.
    pub dataset: &'a Dataset,
    /// Connections, each with a thread; at least one.
    pub connections: u16,
    /// Requests under way on each connection; at least one.
    pub pipeline: u32,
    /// Skew of the choice of items.
    pub theta: f64,
    /// Share of requests that read, 0 to 1.
    pub read_ratio: f64,
    /// Seed of the order of requests.
    pub seed: u64,
}

/// Counts of answers, and their latency.
#[derive(Debug, Clone)]
pub struct Answers {
    /// Reads that found their item's value.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes done.
    pub stored: u64,
    /// Requests the server refused.
    pub errors: u64,
    /// Reads that returned another value than the item's.
    pub wrong: u64,
    /// The server's words at its first refusal.
    pub first_error: Option<String>,
    /// Nanoseconds from sending a batch to reading a reply, for every request.
    latency: Histogram<u64>,
}

/// A measured load.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// Answers to the requests.
    pub tally: Answers,
    /// Time from the first request to the last reply.
    pub elapsed: Duration,
}

impl LoadResult {
    /// Requests answered per second, refusals included.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a count of requests")]
    pub fn throughput(&self) -> f64 {
        self.tally.latency.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// A time in microseconds per answered request; NaN if there was no request.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a count of requests")]
    pub fn per_request_us(&self, time: Duration) -> f64 {
        match self.tally.latency.len() {
            0 => f64::NAN,
            requests => time.as_secs_f64() * 1e6 / requests as f64,
        }
    }

    /// A quantile (0 to 1) of the latency, in microseconds; NaN if there was no request.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "at most a minute")]
    pub fn latency_us(&self, quantile: f64) -> f64 {
        if self.tally.latency.is_empty() {
            return f64::NAN;
        }
        self.tally.latency.value_at_quantile(quantile) as f64 / 1e3
    }
}

impl Plan<'_> {
    /// Stores every item once.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses an item.
    pub fn populate(&self) -> Result<()> {
        let share = self.dataset.items().div_ceil(u64::from(self.connections));
        self.on_every_connection(|nth, connection| {
            let first = (nth * share).min(self.dataset.items());
            let last = (first + share).min(self.dataset.items());
            self.populate_range(connection, first..last)
        })?;
        Ok(())
    }

    fn populate_range(&self, connection: &mut Connection, items: Range<u64>) -> Result<()> {
        let mut batch = Batch::new(self.dataset, self.protocol);
        let mut next = items.start;
        while next < items.end {
            let end = items.end.min(next + u64::from(self.pipeline));
            let verb = Verb::Set;
            batch.fill((next..end).map(|item| Request { verb, item }));
            connection.exchange(&mut batch, |_, answer, _| match answer {
                Answer::Refused(why) => bail!("the server refused an item: {why}"),
                _ => Ok(()),
            })?;
            next = end;
        }
        Ok(())
    }

    /// Requests items until it is time to stop.
    ///
    /// # Errors
    /// If the server cannot be reached, hangs or does not speak the protocol. Refusals, misses and wrong values are no
    /// errors: the result counts them.
    pub fn measure(&self, until: LoadEnd) -> Result<LoadResult> {
        let barrier = Barrier::new(usize::from(self.connections));
        let connections = u64::from(self.connections);
        let parts = self.on_every_connection(|nth, connection| {
            let until = match until {
                // The first connections take the remainder.
                LoadEnd::Requests(all) => {
                    LoadEnd::Requests(all / connections + u64::from(nth < all % connections))
                }
                LoadEnd::Elapsed(_) => until,
            };
            barrier.wait();
            let start = Instant::now();
            let tally = self.ask(connection, nth, until)?;
            Ok((tally, start, Instant::now()))
        })?;
        let mut tally = Answers::new()?;
        let first = parts.iter().map(|(_, start, _)| *start).min();
        let last = parts.iter().map(|(_, _, end)| *end).max();
        for (part, _, _) in parts {
            tally.add(part)?;
        }
        let elapsed = match (first, last) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        Ok(LoadResult { tally, elapsed })
    }

    /// Runs the requests of one connection.
    fn ask(&self, connection: &mut Connection, nth: u64, until: LoadEnd) -> Result<Answers> {
        let mut chooser = Chooser::new(self.dataset, self.theta, self.seed.wrapping_add(nth))?;
        let mut tally = Answers::new()?;
        let mut batch = Batch::new(self.dataset, self.protocol);
        let start = Instant::now();
        let mut left = match until {
            LoadEnd::Requests(count) => count,
            LoadEnd::Elapsed(_) => u64::MAX,
        };
        while left > 0 && !matches!(until, LoadEnd::Elapsed(time) if start.elapsed() >= time) {
            let size = u64::from(self.pipeline).min(left);
            batch.fill((0..size).map(|_| {
                let item = chooser.next_item();
                let reads = self.read_ratio >= 1.0 || chooser.next_ratio() < self.read_ratio;
                let verb = if reads { Verb::Get } else { Verb::Set };
                Request { verb, item }
            }));
            connection.exchange(&mut batch, |request, answer, took| {
                tally.count(self.dataset, request, answer, took);
                Ok(())
            })?;
            left -= size;
        }
        Ok(tally)
    }

    /// Runs `work` on a thread and a connection of its own for every connection of the plan.
    ///
    /// Opens all connections before any thread starts, so that no thread waits at a barrier for one that failed to
    /// connect.
    fn on_every_connection<T: Send>(
        &self,
        work: impl Fn(u64, &mut Connection) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let connections = (0..self.connections)
            .map(|_| Connection::open(self.address, self.protocol))
            .collect::<Result<Vec<_>>>()?;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(connections)
                .map(|(nth, mut connection)| {
                    let work = &work;
                    scope.spawn(move || work(nth, &mut connection))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(anyhow!("a load thread panicked")))
                })
                .collect()
        })
    }
}

impl Answers {
    /// Makes counts of no answers.
    ///
    /// # Errors
    /// None in practice: the histogram's bounds are constants.
    pub fn new() -> Result<Self> {
        Ok(Self {
            hits: 0,
            misses: 0,
            stored: 0,
            errors: 0,
            wrong: 0,
            first_error: None,
            latency: Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)?,
        })
    }

    /// Counts the answer to a request.
    fn count(&mut self, dataset: &Dataset, request: Request, answer: Answer<'_>, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos);
        match answer {
            Answer::Value(value) if dataset.is_value(request.item, value) => self.hits += 1,
            Answer::Value(_) => self.wrong += 1,
            Answer::Missing => self.misses += 1,
            Answer::Stored => self.stored += 1,
            Answer::Refused(why) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| why.to_owned());
            }
        }
    }

    fn add(&mut self, other: Self) -> Result<()> {
        self.hits += other.hits;
        self.misses += other.misses;
        self.stored += other.stored;
        self.errors += other.errors;
        self.wrong += other.wrong;
        self.first_error = self.first_error.take().or(other.first_error);
        self.latency.add(&other.latency)?;
        Ok(())
    }
}
