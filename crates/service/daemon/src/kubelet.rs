//! Requests to the kubelet of this node for its pods: a thread of its own, so that no other thread waits for the network.
//!
//! ```text
//!   roster --ask: a cgroup of an unknown pod--> thread --GET /pods--> kubelet
//!     ^                                            |
//!     +-- latest pods <-- readable descriptor -----+
//! ```
//!
//! The thread asks every 10 s, for changed labels; soon when a pod is new; and ever more seldom while there is no answer. Known pods stay known.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::account::PodsAccount;
use crate::pods::{Pods, read};

/// Time between two requests without a reason.
const EVERY: Duration = Duration::from_secs(10);

/// Time before the next request for a pod that is new: it may not be in the list yet.
const SOON: Duration = Duration::from_millis(300);

/// Longest wait for an answer, and its largest size in bytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Largest size of a token or a certificate, in bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// The kubelet's address, and the credentials for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletSettings {
    /// `http://127.0.0.1:10255`, `https://10.1.2.3:10250`.
    pub url: String,
    /// A file with a bearer token, read again for each request: it is replaced about once an hour.
    pub token_file: Option<PathBuf>,
    /// A file with the certificates (PEM) of which one must have signed the kubelet's.
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate of the server.
    pub skip_verify: bool,
}

/// The thread, and its results.
#[derive(Debug)]
pub struct Kubelet {
    settings: KubeletSettings,
    shared: Arc<SharedState>,
}

#[derive(Debug)]
struct SharedState {
    state: Mutex<State>,
    asked: Condvar,
    /// Readable when the pods have changed.
    told: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    pods: Option<Arc<Pods>>,
    account: PodsAccount,
    answered: Option<Instant>,
    /// The roster waits for a pod that is new.
    wanted: bool,
    ending: bool,
}

impl SharedState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kubelet {
    /// Starts the thread, which begins to ask.
    ///
    /// # Errors
    /// If there can be no descriptor or no thread.
    pub fn start(settings: KubeletSettings) -> io::Result<Self> {
        let shared = Arc::new(SharedState {
            state: Mutex::default(),
            asked: Condvar::new(),
            told: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let (theirs, of_thread) = (settings.clone(), Arc::clone(&shared));
        thread::Builder::new()
            .name("kubelet".to_owned())
            .spawn(move || serve(&theirs, &of_thread))?;
        Ok(Self { settings, shared })
    }

    /// Returns the settings that it was started with.
    #[must_use]
    pub fn settings(&self) -> &KubeletSettings {
        &self.settings
    }

    /// Makes the thread ask soon: a cgroup belongs to a pod, or a container, that is unknown.
    pub fn ask(&self) {
        self.shared.state().wanted = true;
        self.shared.asked.notify_one();
    }

    /// Returns the pods if they have changed since the last call; `None` if not.
    pub fn take(&self) -> Option<Arc<Pods>> {
        let mut count = [0; 8];
        rustix::io::read(&self.shared.told, &mut count).ok()?;
        self.shared.state().pods.clone()
    }

    /// Returns the account of the requests.
    #[must_use]
    pub fn account(&self) -> PodsAccount {
        let state = self.shared.state();
        PodsAccount {
            age_seconds: state.answered.map(|at| at.elapsed().as_secs_f64()),
            ..state.account.clone()
        }
    }
}

impl AsFd for Kubelet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }
}

impl Drop for Kubelet {
    /// Does not wait for an answer that may be under way.
    fn drop(&mut self) {
        self.shared.state().ending = true;
        self.shared.asked.notify_one();
    }
}

fn serve(settings: &KubeletSettings, shared: &SharedState) {
    let mut failures = 0u32;
    loop {
        let answer = ask(settings);
        let mut state = shared.state();
        if state.ending {
            return;
        }
        state.account.requests += 1;
        match answer {
            Ok(pods) => {
                if failures > 0 {
                    tracing::info!(pods = pods.len(), "the kubelet answers again");
                }
                failures = 0;
                state.answered = Some(Instant::now());
                state.account.known = Some(pods.len() as u64);
                state.account.error = None;
                let is_new = state.pods.as_deref() != Some(&pods);
                if is_new {
                    state.pods = Some(Arc::new(pods));
                    // A full counter does not matter: the descriptor is readable then.
                    let _ = rustix::io::write(&shared.told, &1u64.to_ne_bytes());
                }
            }
            Err(because) => {
                if failures == 0 {
                    tracing::warn!(url = settings.url, because, "the kubelet cannot be asked");
                }
                failures = failures.saturating_add(1);
                state.account.failed += 1;
                state.account.error = Some(because);
            }
        }
        // A request for a new pod does not wait long, unless the kubelet fails anyhow.
        let begun = Instant::now();
        let soonest = SOON * 2u32.saturating_pow(failures.min(6));
        loop {
            let gone = begun.elapsed();
            let until = if state.wanted {
                soonest
            } else {
                EVERY.max(soonest)
            };
            if state.ending {
                return;
            }
            if gone >= until {
                break;
            }
            let waited = shared.asked.wait_timeout(state, until - gone);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.wanted = false;
    }
}

/// Sends one request.
fn ask(settings: &KubeletSettings) -> Result<Pods, String> {
    let agent = agent(settings)?;
    let url = format!("{}/pods", settings.url.trim_end_matches('/'));
    let mut request = agent.get(&url).header("Accept", "application/json");
    if let Some(path) = &settings.token_file {
        let token = small_file(path)?;
        let token =
            String::from_utf8(token).map_err(|_| format!("{} is no token", path.display()))?;
        request = request.header("Authorization", format!("Bearer {}", token.trim()));
    }
    let mut answer = request.call().map_err(|error| match error {
        ureq::Error::StatusCode(401) => "401: it does not know whose token this is".to_owned(),
        ureq::Error::StatusCode(403) => {
            "403: the service account may not `get` `nodes/proxy` (or `nodes/pods`)".to_owned()
        }
        other => other.to_string(),
    })?;
    // A redirect is not followed: the token must not go to another server.
    if answer.status() != 200 {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = answer
        .body_mut()
        .with_config()
        .limit(MAX_ANSWER_BYTES)
        .read_to_vec();
    read(&body.map_err(|error| error.to_string())?)
}

fn agent(settings: &KubeletSettings) -> Result<Agent, String> {
    let mut tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .disable_verification(settings.skip_verify);
    if let Some(path) = &settings.ca_file {
        let pem = small_file(path)?;
        let found: Result<Vec<_>, _> = ureq::tls::parse_pem(&pem).collect();
        let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
        let certificates: Vec<Certificate<'static>> = (found.into_iter())
            .filter_map(|item| match item {
                ureq::tls::PemItem::Certificate(certificate) => Some(certificate),
                _ => None,
            })
            .collect();
        if certificates.is_empty() {
            return Err(format!("{} has no certificate", path.display()));
        }
        tls = tls.root_certs(RootCerts::Specific(Arc::new(certificates)));
    }
    let config = Agent::config_builder()
        .timeout_global(Some(ANSWER_TIMEOUT))
        // Proxies in the environment are not meant for the node itself.
        .proxy(None)
        .max_redirects(0)
        .tls_config(tls.build())
        .build();
    Ok(config.into())
}

fn small_file(path: &PathBuf) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(LARGEST_FILE).read_to_end(&mut text));
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}

/// A kubelet for tests: it answers each request with the text that was set.
#[cfg(test)]
pub(crate) mod fake {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    use super::KubeletSettings;

    #[derive(Debug)]
    pub(crate) struct Fake {
        pub(crate) settings: KubeletSettings,
        answer: Arc<Mutex<Vec<u8>>>,
        /// The heads of the requests so far.
        pub(crate) seen: Arc<Mutex<Vec<String>>>,
    }

    /// Returns one pod of a list.
    pub(crate) fn pod(uid: &str, name: &str, annotation: &str, container: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"shop","uid":"{uid}","annotations":{{"superhue.dev/pages":"{annotation}"}}}},
              "status":{{"containerStatuses":[{{"name":"server","containerID":"containerd://{container}"}}]}}}}"#
        )
    }

    impl Fake {
        /// Starts a kubelet that answers with this list of pods.
        pub(crate) fn with(pods: &[String]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let answer = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::new(Mutex::new(Vec::new()));
            let (of_thread, heads) = (Arc::clone(&answer), Arc::clone(&seen));
            // It ends with the process of the test.
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let answer = of_thread.lock().unwrap().clone();
                    serve(stream, &answer, &heads);
                }
            });
            let fake = Self {
                settings: KubeletSettings {
                    url: format!("http://127.0.0.1:{port}"),
                    token_file: None,
                    ca_file: None,
                    skip_verify: false,
                },
                answer,
                seen,
            };
            fake.answer(pods);
            fake
        }

        pub(crate) fn answer(&self, pods: &[String]) {
            let body = format!(r#"{{"kind":"PodList","items":[{}]}}"#, pods.join(","));
            self.answer_with("200 OK", &body);
        }

        pub(crate) fn answer_with(&self, status: &str, body: &str) {
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            *self.answer.lock().unwrap() = answer.into_bytes();
        }
    }

    fn serve(stream: TcpStream, answer: &[u8], heads: &Mutex<Vec<String>>) {
        let mut head = String::new();
        let mut reader = BufReader::new(&stream);
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0)
        {
        }
        heads.lock().unwrap().push(head);
        let _ = (&stream).write_all(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::fake::{Fake, pod};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(begun.elapsed() < LIMIT, "it takes too long");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_it_says_is_told_and_told_again_when_it_changes() {
        let fake = Fake::with(&[pod("u-1", "redis-0", "hot", "aa")]);
        let kubelet = Kubelet::start(fake.settings.clone()).unwrap();
        let pods = until(|| kubelet.take());
        assert_eq!(pods["u-1"].annotations["superhue.dev/pages"], "hot");
        assert_eq!(kubelet.take(), None, "nothing new");
        fake.answer(&[
            pod("u-1", "redis-0", "hot", "aa"),
            pod("u-2", "redis-1", "off", "bb"),
        ]);
        kubelet.ask();
        let pods = until(|| kubelet.take());
        assert_eq!(pods.len(), 2);
        let account = kubelet.account();
        assert_eq!((account.known, account.failed), (Some(2), 0));
        assert!(account.age_seconds.is_some() && account.requests >= 2);
        let seen = fake.seen.lock().unwrap();
        assert!(seen[0].starts_with("GET /pods HTTP/1.1\r\n"), "{seen:?}");
        assert!(!seen[0].to_lowercase().contains("authorization"));
    }

    #[test]
    fn what_was_known_stays_while_there_is_no_answer() {
        let fake = Fake::with(&[pod("u-1", "redis-0", "hot", "aa")]);
        let kubelet = Kubelet::start(fake.settings.clone()).unwrap();
        until(|| kubelet.take());
        for (status, body, expected) in [
            ("401 Unauthorized", "Unauthorized", "whose token"),
            ("403 Forbidden", "Forbidden", "nodes/proxy"),
            ("500 Oh", "", "500"),
            // It would lead the token elsewhere.
            ("302 Found\r\nLocation: http://127.0.0.1:1/", "", "302"),
            ("200 OK", "<html>", "no list of pods"),
            ("200 OK", r#"{"items":[{}]}"#, "no list of pods"),
        ] {
            let failed = kubelet.account().failed;
            fake.answer_with(status, body);
            kubelet.ask();
            let error = until(|| {
                let account = kubelet.account();
                account
                    .error
                    .filter(|error| account.failed > failed && error.contains(expected))
            });
            assert!(!error.is_empty());
            assert_eq!(kubelet.account().known, Some(1), "{status}");
            assert_eq!(kubelet.take(), None);
            // As a change of the settings would: no waiting for the next turn.
            fake.answer(&[pod("u-1", "redis-0", "hot", "aa")]);
            kubelet.ask();
            until(|| kubelet.account().error.is_none().then_some(()));
        }
    }

    #[test]
    fn nobody_waits_for_one_that_is_silent() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = KubeletSettings {
            url: format!("http://{}", silent.local_addr().unwrap()),
            token_file: None,
            ca_file: None,
            skip_verify: false,
        };
        let kubelet = Kubelet::start(settings).unwrap();
        let _asked = silent.accept().unwrap();
        let begun = Instant::now();
        assert_eq!(kubelet.take(), None);
        assert_eq!(kubelet.account().requests, 0);
        drop(kubelet);
        assert!(begun.elapsed() < ANSWER_TIMEOUT, "it was waited for");
    }

    #[test]
    fn files_are_read_for_each_request() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        let settings = KubeletSettings {
            url: "https://127.0.0.1:1".to_owned(),
            token_file: Some(token.clone()),
            ca_file: None,
            skip_verify: true,
        };
        assert!(ask(&settings).unwrap_err().contains("token: No such file"));
        fs::write(&token, "secret\n").unwrap();
        let refused = ask(&settings).unwrap_err();
        assert!(refused.contains("refused"), "{refused}");
        let ca = folder.path().join("ca");
        fs::write(&ca, "no certificate\n").unwrap();
        let settings = KubeletSettings {
            ca_file: Some(ca),
            ..settings
        };
        assert!(ask(&settings).unwrap_err().contains("has no certificate"));
    }
}
