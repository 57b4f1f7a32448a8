//! `load`: zipfian reads against a real `memcached` or `redis-server`.
//!
//! After YCSB (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010,
//! <https://doi.org/10.1145/1807128.1807152>): some items are requested much more often than others, and the popular
//! ones lie scattered over the server's memory, so that every region holds a few of them. Requests are pipelined;
//! otherwise the system calls of client and server would cost more than the server's work in its memory.
//!
//! ```text
//!   populate            settle        warmup             measure
//!   |--SET every item---|.............|--GET zipfian-----|==GET zipfian, check every value==|
//! ```
//!
//! - [`dataset`]: keys, values and the choice of the next item.
//! - [`protocol`]: bytes of requests and replies.
//! - [`batch`]: requests sent together, and the match of replies to requests.
//! - [`connection`]: one blocking socket, a batch of requests at a time.
//! - [`client`]: threads, counts and latencies.
//! - [`server`]: starts and stops the server, if the user gives its command.

pub mod batch;
pub mod client;
pub mod connection;
pub mod dataset;
pub mod protocol;
pub mod server;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use superhue_model::ByteCount;

use self::client::{Answers, LoadEnd, Plan};
use self::dataset::Dataset;
use self::protocol::Protocol;
use self::server::Server;
use crate::{Report, UsageError, args, procfs};

/// Upper limit of the bytes of values in one pipelined batch.
///
/// A client that writes more than the sockets hold, to a server that waits for it to read replies, waits for ever: both
/// sides block.
const LARGEST_BATCH: u64 = 1 << 20;

/// Largest value; memcached's default limit is 1 MiB for an item with its key and header.
const LARGEST_VALUE: u64 = 1_000_000;

/// Bits in which the seed of a warm-up differs from that of the measurement.
const WARM_UP: u64 = 0x7761_726d_2d75_7000;

/// Options of `load`.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("until").required(true).args(["requests", "seconds"]))]
pub struct LoadOptions {
    /// Protocol of the server
    #[arg(value_enum)]
    pub protocol: Protocol,
    /// Loopback address of the server
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = loopback)]
    pub host: IpAddr,
    /// TCP port of the server
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Distinct items
    #[arg(long, value_name = "N", default_value_t = 800_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub items: u64,
    /// Bytes in each value, at most 1000000
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = value_size)]
    pub value_size: ByteCount,
    /// Stop after this number of requests, at most 1000000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub requests: Option<u64>,
    /// Stop after this time
    #[arg(long, value_name = "SECONDS", value_parser = args::seconds)]
    pub seconds: Option<Duration>,
    /// Connections, each served by a thread
    #[arg(long, value_name = "C", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub connections: u16,
    /// Requests under way on each connection
    #[arg(long, value_name = "K", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pipeline: u32,
    /// Skew of the zipfian distribution: 0 is uniform
    #[arg(long, visible_alias = "zipf", value_name = "THETA", default_value = "0.99", value_parser = theta)]
    pub theta: f64,
    /// Share of the requests that read; the others write the same value again
    #[arg(long, value_name = "RATIO", default_value = "1.0", value_parser = args::ratio)]
    pub read_ratio: f64,
    /// Store every item first (the default)
    #[arg(long, overrides_with = "no_populate")]
    pub populate: bool,
    /// Do not store the items: the server has them already
    #[arg(long, overrides_with = "populate")]
    pub no_populate: bool,
    /// Load for this time before measuring; wrong values in this time still count as wrong
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = args::time)]
    pub warmup: Duration,
    /// Process number of a server that runs already, to measure its CPU time and memory
    #[arg(long, conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Wait between populating and measuring
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = args::time)]
    pub settle: Duration,
    /// Seed of keys, values and the order of requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Start this server for the run, and stop it afterwards
    #[arg(last = true, value_name = "SERVER COMMAND")]
    pub server: Vec<String>,
}

/// Populates the server, waits, measures.
///
/// Prints `populate_seconds`, `throughput_ops` (requests answered per second), `p50_us`, `p99_us`, `p999_us` (from
/// sending a batch to reading the reply), `hits`, `misses`, `errors` (error replies), `wrong` (values that were not
/// those of their key). If it started the server or knows its process, it also prints `server_cpu_us` (CPU time of the
/// server per request, which other programs disturb less than its throughput) and `server_rss_bytes`.
///
/// # Errors
/// If the server cannot be started or reached, does not speak the protocol, refuses an item, answers with an error or a
/// wrong value, or the output is closed.
pub fn run(options: &LoadOptions, report: &mut Report<impl Write>) -> Result<()> {
    let batch = u64::from(options.pipeline).saturating_mul(options.value_size.0);
    if batch > LARGEST_BATCH.max(options.value_size.0) {
        let text = format!(
            "--pipeline {} of --value-size {}: a batch must stay within {}",
            options.pipeline,
            options.value_size,
            ByteCount(LARGEST_BATCH)
        );
        return Err(UsageError(text).into());
    }
    let address = SocketAddr::new(options.host, options.port);
    let server = match options.server.as_slice() {
        [] => None,
        [program, arguments @ ..] => Some(Server::start(program, arguments, address)?),
    };
    let dataset = Dataset::new(options.items, options.value_size, options.seed)?;
    let until = match (options.requests, options.seconds) {
        (Some(requests), _) => LoadEnd::Requests(requests),
        (None, seconds) => LoadEnd::Elapsed(seconds.unwrap_or_default()),
    };
    let plan = Plan {
        address,
        protocol: options.protocol,
        dataset: &dataset,
        connections: options.connections,
        pipeline: options.pipeline,
        theta: options.theta,
        read_ratio: options.read_ratio,
        seed: options.seed,
    };
    if !options.no_populate {
        let start = Instant::now();
        plan.populate()?;
        report.number("populate_seconds", start.elapsed().as_secs_f64())?;
    }
    thread::sleep(options.settle);
    let mut warm = Answers::new()?;
    if !options.warmup.is_zero() {
        // Other requests than those that are measured: a server that moves hot items would know these beforehand.
        let before = Plan {
            seed: options.seed ^ WARM_UP,
            ..plan
        };
        warm = before.measure(LoadEnd::Elapsed(options.warmup))?.tally;
    }
    let pid = server.as_ref().map(Server::pid).or(options.pid);
    let pid = pid.map(|pid| pid.to_string());
    let cpu_time = || pid.as_deref().map(procfs::cpu_time).transpose();
    let cpu_before = cpu_time()?;
    let result = plan.measure(until)?;
    let cpu_after = cpu_time()?;
    report.number("throughput_ops", result.throughput())?;
    for (name, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
        report.number(name, result.latency_us(quantile))?;
    }
    let tally = &result.tally;
    report.line("hits", tally.hits)?;
    report.line("misses", tally.misses)?;
    report.line("errors", tally.errors)?;
    report.line("wrong", tally.wrong)?;
    if let (Some(pid), Some(before), Some(after)) = (&pid, cpu_before, cpu_after) {
        report.number(
            "server_cpu_us",
            result.per_request_us(after.saturating_sub(before)),
        )?;
        report.line("server_rss_bytes", procfs::rss(pid)?.0)?;
    }
    if let Some(server) = server {
        server.stop()?;
    }
    for tally in [&warm, tally] {
        if tally.wrong > 0 {
            bail!("{} values were not those of their key", tally.wrong);
        }
        if let Some(error) = &tally.first_error {
            bail!(
                "{} requests were answered with an error, the first: {error}",
                tally.errors
            );
        }
    }
    Ok(())
}

/// Reads an address, which must be one of this machine's own: a load generator against other machines is a weapon.
fn loopback(text: &str) -> Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => Ok(address),
        Ok(_) => Err(format!("`{text}` is not a loopback address")),
        Err(_) => Err(format!("`{text}` is not an address: write 127.0.0.1")),
    }
}

fn value_size(text: &str) -> Result<ByteCount, String> {
    match text.parse::<ByteCount>() {
        Ok(size) if (1..=LARGEST_VALUE).contains(&size.0) => Ok(size),
        Ok(_) => Err(format!(
            "`{text}` is not between 1 and {LARGEST_VALUE} bytes"
        )),
        Err(error) => Err(error.to_string()),
    }
}

fn theta(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(theta) if (0.0..=10.0).contains(&theta) => Ok(theta),
        _ => Err(format!("`{text}` is not a skew: write 0 to 10, e.g. 0.99")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loaded() {
        for text in ["127.0.0.1", "127.1.2.3", "::1", "localhost"] {
            assert!(loopback(text).unwrap().is_loopback(), "{text}");
        }
        for text in ["10.0.0.1", "0.0.0.0", "::", "example.org", "", "2130706433"] {
            assert!(loopback(text).is_err(), "{text}");
        }
    }

    #[test]
    fn value_sizes_and_skews_are_bounded() {
        assert_eq!(value_size("1"), Ok(ByteCount(1)));
        assert_eq!(value_size("64K"), Ok(ByteCount(65_536)));
        for text in ["0", "1M", "-1", "x"] {
            assert!(value_size(text).is_err(), "{text}");
        }
        assert_eq!(theta("0"), Ok(0.0));
        for text in ["-1", "11", "NaN", ""] {
            assert!(theta(text).is_err(), "{text}");
        }
    }
}
