//! Numbers from outside: from the output of a command or the answer of a Prometheus server. Bounded in time and size.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use superhue_measure::UserMetric;
use superhue_sys::process::SignalSet;

use crate::launch::shell;

/// Time after which a command or a server counts as not answering.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Longest answer in bytes; longer output is no number.
pub const LONGEST_ANSWER: usize = 1 << 20;

/// Interval between two checks of `stop` while a command runs.
const STEP: Duration = Duration::from_millis(20);

/// Reason why there is no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// The command did not start.
    #[error("cannot run `{command}`: {why}")]
    NotRun {
        /// The command.
        command: String,
        /// Reason, from the error of the system.
        why: String,
    },
    /// The command ended with another status than 0.
    #[error("`{command}` failed ({how}){said}")]
    Failed {
        /// The command.
        command: String,
        /// Exit status or signal.
        how: String,
        /// Last line of its output, after a colon; empty for none.
        said: String,
    },
    /// The command took too long, and was killed.
    #[error("`{0}` did not answer within 5 s and was ended: let it print a number and exit")]
    Late(String),
    /// The command printed too much, and was killed.
    #[error("`{0}` printed more than 1 MiB and was ended: let it print a number and exit")]
    Flood(String),
    /// The answer is no number.
    #[error("{who} said `{said}`, which is {problem}")]
    Nonsense {
        /// Source of the answer.
        who: String,
        /// Beginning of the answer.
        said: String,
        /// Fault of the answer.
        problem: String,
    },
    /// The server gave no valid answer.
    #[error("{url}: {why}")]
    Server {
        /// Address of the server.
        url: String,
        /// Fault of the server or of its answer.
        why: String,
    },
    /// The trial ended meanwhile.
    #[error("the trial ended meanwhile")]
    Stopped,
}

/// Source of numbers.
#[derive(Debug, Clone)]
pub enum Source {
    /// A command (`sh -c`), and the expression for the number in its output.
    Command {
        /// The command.
        command: String,
        /// Expression for the number in the output; `None` if the whole output is the number.
        regex: Option<Box<UserMetric>>,
    },
    /// An instant query to a Prometheus server.
    Prometheus {
        /// Address at which it listens, e.g. `http://127.0.0.1:9090`.
        url: String,
        /// Query in the server's language.
        query: String,
    },
}

impl Source {
    /// Returns the command or the query, for reports.
    #[must_use]
    pub fn asked(&self) -> &str {
        match self {
            Self::Command { command, .. } => command,
            Self::Prometheus { query, .. } => query,
        }
    }

    /// Returns the regular expression for the output of the command, if there is one.
    pub(super) fn pattern(&self) -> Option<&str> {
        match self {
            Self::Command { regex, .. } => regex.as_ref().map(|regex| regex.pattern()),
            Self::Prometheus { .. } => None,
        }
    }

    /// Returns the URL of the server, if it is one, without a user and a password.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::Command { .. } => None,
            Self::Prometheus { url, .. } => Some(without_login(url)),
        }
    }

    /// Reads one number. Calls `stop` again and again, and gives up when it returns true; waits for a server without that, for at most 5 s.
    ///
    /// # Errors
    /// See [`MetricError`].
    pub fn ask(&self, stop: &mut dyn FnMut() -> bool) -> Result<f64, MetricError> {
        match self {
            Self::Command { command, regex } => {
                let said = output_of(command, stop)?;
                number_in(&said, regex.as_deref(), &format!("`{}`", short(command)))
            }
            Self::Prometheus { url, query } => query_of(url, query),
        }
    }
}

/// Returns a URL without a user and a password, for everything that people read or that is kept.
#[must_use]
pub fn without_login(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, at)| at);
    format!("{scheme}{host}{path}")
}

/// Returns the first words of a long text.
fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut words: String = line.chars().take(60).collect();
    if words.len() < text.trim_end().len() {
        words.push('\u{2026}');
    }
    words
}

/// Returns the text that a command prints on standard output.
fn output_of(command: &str, stop: &mut dyn FnMut() -> bool) -> Result<String, MetricError> {
    let name = short(command);
    let not_run = |error: std::io::Error| MetricError::NotRun {
        command: name.clone(),
        why: error.to_string(),
    };
    let child = shell(command, SignalSet::of(&[]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(not_run)?;
    let mut child = Group(child);
    let mut out = child.0.stdout.take().ok_or(MetricError::Stopped)?;
    let flags = fcntl_getfl(&out).map_err(|errno| not_run(errno.into()))?;
    fcntl_setfl(&out, flags | OFlags::NONBLOCK).map_err(|errno| not_run(errno.into()))?;
    let until = Instant::now() + ANSWER_WITHIN;
    let mut said = Vec::new();
    let mut buffer = [0_u8; 4096];
    // Reads until all processes that hold the pipe have closed it.
    loop {
        match out.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let step = Timespec::try_from(STEP).ok();
                let _ = poll(&mut [PollFd::new(&out, PollFlags::IN)], step.as_ref());
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(not_run(error)),
        }
        if said.len() > LONGEST_ANSWER {
            return Err(MetricError::Flood(name));
        }
        if stop() {
            return Err(MetricError::Stopped);
        }
        if Instant::now() >= until {
            return Err(MetricError::Late(name));
        }
    }
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(not_run)? {
            break status;
        }
        if stop() {
            return Err(MetricError::Stopped);
        }
        if Instant::now() >= until {
            return Err(MetricError::Late(name));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let said = String::from_utf8_lossy(&said).into_owned();
    if !status.success() {
        let last = said.lines().last().unwrap_or_default();
        return Err(MetricError::Failed {
            command: name,
            how: status.to_string(),
            said: if last.is_empty() {
                String::new()
            } else {
                format!(": {}", short(last))
            },
        });
    }
    Ok(said)
}

/// A command with all processes that it started: none of them outlives the answer.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number_in(said: &str, regex: Option<&UserMetric>, who: &str) -> Result<f64, MetricError> {
    let nonsense = |problem: String| MetricError::Nonsense {
        who: who.to_owned(),
        said: short(said),
        problem,
    };
    if let Some(regex) = regex {
        return regex
            .extract(said)
            .map_err(|miss| nonsense(format!("not what was expected: {miss}")));
    }
    let number: Option<f64> = said.trim().parse().ok();
    let number = number.filter(|number| number.is_finite());
    number.ok_or_else(|| {
        nonsense("not one finite number (--metric-regex takes one out of more text)".to_owned())
    })
}

/// Returns the value of an instant query (Prometheus' HTTP API, `/api/v1/query`).
fn query_of(url: &str, query: &str) -> Result<f64, MetricError> {
    let shown = without_login(url);
    let trouble = |why: String| MetricError::Server {
        url: shown.clone(),
        // An error may cite the address.
        why: why.replace(url.trim_end_matches('/'), &shown),
    };
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(ANSWER_WITHIN))
        .max_redirects(0)
        // A proxy in the environment is meant for other addresses.
        .proxy(None)
        .http_status_as_error(false)
        .build()
        .new_agent();
    let address = format!("{}/api/v1/query", url.trim_end_matches('/'));
    let asked = agent.get(&address).query("query", query).call();
    let mut answer = asked.map_err(|error| trouble(format!("no answer: {error}")))?;
    let status = answer.status();
    let body = answer.body_mut().with_config();
    let body = body.limit(LONGEST_ANSWER as u64).read_to_vec();
    let body = body.map_err(|error| trouble(format!("no whole answer: {error}")))?;
    let answer: serde_json::Value = serde_json::from_slice(&body).map_err(|_| {
        let said = String::from_utf8_lossy(&body);
        trouble(format!(
            "status {status}, and no JSON but `{}`",
            short(&said)
        ))
    })?;
    value_in(&answer).map_err(|why| trouble(format!("`{}`: {why}", short(query))))
}

/// Returns the one number in an answer.
fn value_in(answer: &serde_json::Value) -> Result<f64, String> {
    if answer["status"] != "success" {
        let error = answer["error"].as_str().unwrap_or("no success");
        return Err(short(error));
    }
    let data = &answer["data"];
    let value = match data["resultType"].as_str() {
        Some("scalar") => &data["result"][1],
        Some("vector") => match data["result"].as_array().map(Vec::as_slice) {
            Some([one]) => &one["value"][1],
            Some(all) => {
                return Err(format!(
                    "{} series, and one is needed (sum(...) makes one of many)",
                    all.len()
                ));
            }
            None => return Err("no result".to_owned()),
        },
        other => {
            return Err(format!(
                "a result of type {}, and a vector or scalar is needed",
                short(other.unwrap_or("none"))
            ));
        }
    };
    let number: Option<f64> = value.as_str().and_then(|text| text.parse().ok());
    let number = number.filter(|number| number.is_finite());
    number.ok_or_else(|| format!("{value} is not a finite number"))
}

/// Parses an expression for the number in a command's output, in the syntax of `compare --metric`.
///
/// # Errors
/// A sentence that names the fault of the expression.
pub fn expression(text: &str) -> Result<UserMetric, String> {
    UserMetric::parse(&format!("metric={text}")).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    fn ask(command: &str) -> Result<f64, MetricError> {
        let source = Source::Command {
            command: command.to_owned(),
            regex: None,
        };
        patiently(|| source.ask(&mut || false))
    }

    /// Asks until there is an answer in time: on a busy machine a command or server may get no CPU for longer than [`ANSWER_WITHIN`].
    fn patiently(mut ask: impl FnMut() -> Result<f64, MetricError>) -> Result<f64, MetricError> {
        let begun = Instant::now();
        loop {
            match ask() {
                Err(error) if is_late(&error) && begun.elapsed() < Duration::from_secs(60) => {}
                other => break other,
            }
        }
    }

    fn is_late(error: &MetricError) -> bool {
        match error {
            MetricError::Late(_) => true,
            MetricError::Server { why, .. } => why.contains("timeout"),
            _ => false,
        }
    }

    #[test]
    fn a_number_is_taken_and_nothing_else() {
        assert_eq!(ask("echo 12.5"), Ok(12.5));
        for nonsense in [
            "echo",
            "echo 1 2",
            "echo nan",
            "echo inf",
            "echo 1e999",
            "echo x",
        ] {
            let said = ask(nonsense);
            assert!(
                matches!(said, Err(MetricError::Nonsense { .. })),
                "{said:?}"
            );
        }
        let failed = ask("echo why; exit 3").unwrap_err().to_string();
        assert!(failed.contains("why") && failed.contains('3'), "{failed}");
        let source = Source::Command {
            command: "echo 'calls:7 hits:3'".to_owned(),
            regex: Some(Box::new(expression("hits:([0-9]+)").unwrap())),
        };
        assert_eq!(patiently(|| source.ask(&mut || false)), Ok(3.0));
        assert!(expression("(").is_err());
    }

    #[test]
    fn who_floods_or_hangs_is_ended_with_all_it_started() {
        assert!(matches!(ask("yes"), Err(MetricError::Flood(_))));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let command = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let source = Source::Command {
            command,
            regex: None,
        };
        // True as soon as the background process has started.
        let mut stop = || std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'));
        let stopped = patiently(|| source.ask(&mut stop));
        assert_eq!(stopped, Err(MetricError::Stopped));
        let pid = std::fs::read_to_string(&file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let is_gone = || {
            let stat = std::fs::read_to_string(&stat);
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !is_gone() {
            assert!(Instant::now() < until, "{pid} lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
        // A command that leaves its output open is waited for until the deadline only.
        let hangs = Source::Command {
            command: "exec sleep 1000".to_owned(),
            regex: None,
        };
        let late = hangs.ask(&mut || false);
        assert!(matches!(late, Err(MetricError::Late(_))), "{late:?}");
    }

    /// Starts a server that gives one answer.
    fn answers(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(&answer);
        });
        format!("http://{address}")
    }

    fn query(body: &str) -> Result<f64, MetricError> {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        patiently(|| query_of(&answers(answer.clone().into_bytes()), "up"))
    }

    #[test]
    fn a_server_gives_one_number() {
        let vector = |results: &str| {
            format!(
                r#"{{"status":"success","data":{{"resultType":"vector","result":[{results}]}}}}"#
            )
        };
        let one = r#"{"metric":{},"value":[1,"2.5"]}"#;
        assert_eq!(query(&vector(one)), Ok(2.5));
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"7"]}}"#;
        assert_eq!(query(scalar), Ok(7.0));
        let refused = |body: &str| query(body).unwrap_err().to_string();
        assert!(refused(&vector(&format!("{one},{one}"))).contains("2 series"));
        assert!(refused(&vector("")).contains("0 series"));
        assert!(refused(&vector(r#"{"metric":{},"value":[1,"NaN"]}"#)).contains("finite"));
        assert!(refused(r#"{"status":"error","error":"parse error"}"#).contains("parse error"));
        assert!(refused("[]").contains("no success"));
        assert!(refused("hello").contains("no JSON"));
    }

    #[test]
    fn a_password_stays_out_of_what_is_said() {
        let said = query_of("http://me:secret@127.0.0.1:1/", "up")
            .unwrap_err()
            .to_string();
        assert!(said.starts_with("http://127.0.0.1:1/: no answer"), "{said}");
        let said = query_of("http://me:secret@a b", "up")
            .unwrap_err()
            .to_string();
        assert!(!said.contains("secret"), "{said}");
        for (url, shown) in [
            ("http://a:1", "http://a:1"),
            ("http://u:p@w@a:1/x@y?z", "http://a:1/x@y?z"),
            ("https://u@a", "https://a"),
            ("u:p@a", "a"),
        ] {
            assert_eq!(without_login(url), shown);
        }
    }

    #[test]
    fn a_server_that_floods_or_is_not_there_is_told() {
        let mut flood = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
        flood.resize(3 << 20, b' ');
        let said = patiently(|| query_of(&answers(flood.clone()), "up"));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("no whole answer"), "{said}");
        let said = query_of("http://127.0.0.1:1", "up")
            .unwrap_err()
            .to_string();
        assert!(said.contains("no answer"), "{said}");
        assert!(query_of("nonsense://", "up").is_err());
    }
}
