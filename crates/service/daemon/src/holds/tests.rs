//! Holds of clients at a real socket, by a clock of the test's own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superhue::PlacementOptions;
use superhue_model::ProcessId;
use superhue_serve::{Access, Listener};

use super::*;
use crate::account::TrialAccount;
use crate::clients::{MAX_LEASED, MAX_LEASED_OF_ONE_USER};
use crate::ctl::{
    Answer, Answers, HeldRule, HoldError, LEASE, Request, RuleHold, RuleSummary, Server,
};
use crate::rules::Conditions;

const NOW: Duration = Duration::from_secs(100);
const SECOND: Duration = Duration::from_secs(1);

fn rule(name: &str, placement: Option<PlacementOptions>) -> Rule {
    Rule {
        name: name.into(),
        place: format!("{name}.toml:1"),
        conditions: Conditions::default(),
        placement,
    }
}

fn process(pid: u32) -> ProcessId {
    ProcessId {
        pid,
        start_ticks: 1,
    }
}

/// A daemon without watches: rule `off` leaves its processes alone, and `empty` has none.
struct Party {
    holds: Holds,
    rules: Vec<Rule>,
    processes: Vec<ProcessId>,
    /// Answer to all requests but holds.
    text: String,
    /// Clients that had a hold, and are gone.
    ended: Vec<u64>,
    /// Results of trials, by rule.
    tried: Vec<(String, TrialAccount)>,
}

impl Answers for Party {
    fn answer(&mut self, from: Requester, request: Request) -> Answer {
        let done = || Answer::Done {
            text: self.text.clone(),
        };
        let rule = match request {
            Request::Hold { rule } => rule,
            Request::TrialEnded { rule, trial } => {
                return match self.holds.held_by(from.client, &rule) {
                    Ok(_) => {
                        self.tried.push((rule, trial));
                        Answer::Done {
                            text: String::new(),
                        }
                    }
                    Err(text) => Answer::Refused { text },
                };
            }
            _ => return done(),
        };
        let count = self.processes.len() as u64;
        let count = |name: &str| if name == "empty" { 0 } else { count };
        match self.holds.take(from, &rule, &self.rules, count) {
            Ok(rule) => Answer::Held(HeldRule {
                rule: RuleSummary::of(&rule, None),
                policy: rule.placement.unwrap(),
                processes: self.processes.clone(),
                lease_seconds: LEASE.as_secs(),
                paused: false,
            }),
            Err(text) => Answer::Refused { text },
        }
    }

    fn ended(&mut self, client: u64) {
        assert!(self.holds.end(client), "{client} had none");
        self.ended.push(client);
    }
}

/// The party, at a socket.
struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
    server: Server,
    party: Party,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ctl.sock");
        let access = Access {
            packets: false,
            mode: 0o600,
            group: None,
        };
        let on = || Some(PlacementOptions::default());
        Self {
            server: Server::new(Listener::with(&path, access).unwrap()).unwrap(),
            party: Party {
                holds: Holds::default(),
                rules: vec![
                    rule("a", on()),
                    rule("b", on()),
                    rule("empty", on()),
                    rule("off", None),
                ],
                processes: vec![process(7)],
                text: "done".to_owned(),
                ended: Vec::new(),
                tried: Vec::new(),
            },
            _folder: folder,
            path,
        }
    }

    /// Lets the daemon do all there is to do at this time.
    fn step(&mut self, at: Duration) {
        for _ in 0..10 {
            self.server.step(at, &mut self.party);
        }
    }

    /// Takes a rule by a client whose clock shows `begun`.
    fn take(&mut self, rule: &str, begun: Instant) -> Result<RuleHold, HoldError> {
        let (path, rule) = (self.path.clone(), rule.to_owned());
        let client = std::thread::spawn(move || RuleHold::take(&path, &rule, begun));
        while !client.is_finished() {
            self.step(NOW);
        }
        client.join().unwrap()
    }

    fn held(&self) -> Vec<String> {
        let names = self.party.holds.names().into_iter();
        names.map(|name| name.to_string()).collect()
    }
}

#[test]
fn a_hold_ends_with_its_connection_and_only_once() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let hold = place.take("a", begun).unwrap();
    let other = place.take("b", begun).unwrap();
    assert_eq!(hold.rule().processes, [process(7)]);
    assert_eq!(hold.rule().rule.place, "a.toml:1");
    assert_eq!(place.held(), ["a", "b"]);
    drop(hold);
    place.step(NOW);
    assert_eq!(place.held(), ["b"]);
    assert_eq!(place.party.ended.len(), 1);
    drop(other);
    // The lease has run out as well.
    place.step(NOW + LEASE);
    assert_eq!((place.held(), place.party.ended.len()), (vec![], 2));
    assert_eq!(place.server.due(), None);
}

#[test]
fn a_hold_that_is_not_extended_ends_with_its_lease() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let mut hold = place.take("a", begun).unwrap();
    assert_eq!(place.server.due(), Some(NOW + LEASE), "the daemon wakes up");
    place.step(NOW + LEASE - Duration::from_millis(1));
    assert_eq!(place.held(), ["a"]);
    place.step(NOW + LEASE);
    assert_eq!((place.held(), place.party.ended.len()), (vec![], 1));
    let why = hold.keep(begun + LEASE).unwrap_err().to_string();
    assert!(
        why.contains("`a` any more") && why.contains("for 60 s"),
        "{why}"
    );
    drop(hold);
    place.step(NOW + LEASE);
    assert_eq!(place.party.ended.len(), 1);
}

#[test]
fn a_hold_is_extended_once_a_second_and_brings_the_present_processes() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let mut hold = place.take("a", begun).unwrap();
    // Nothing is due.
    hold.keep(begun + SECOND / 2).unwrap();
    place.step(NOW + SECOND / 2);
    assert_eq!(place.server.due(), Some(NOW + LEASE));
    // The service is started again: it has no process for a moment, and then another one.
    place.party.processes.clear();
    hold.keep(begun + SECOND).unwrap();
    place.step(NOW + SECOND);
    assert_eq!(place.server.due(), Some(NOW + SECOND + LEASE));
    assert_eq!(hold.keep(begun + SECOND).unwrap().processes, []);
    place.party.processes.push(process(8));
    hold.keep(begun + 2 * SECOND).unwrap();
    place.step(NOW + 2 * SECOND);
    let held = hold.keep(begun + 2 * SECOND).unwrap();
    assert_eq!(held.processes, [process(8)]);
    // A daemon that does not answer is not waited for, and given up in the end.
    hold.keep(begun + 3 * SECOND).unwrap();
    hold.keep(begun + 12 * SECOND).unwrap();
    let why = hold.keep(begun + 13 * SECOND).unwrap_err().to_string();
    assert!(why.contains("has not answered in 10 s"), "{why}");
    assert_eq!(place.held(), ["a"]);
}

#[test]
fn what_cannot_be_held_is_refused_with_the_reason() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let first = place.take("b", begun).unwrap();
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let owner = format!("process {pid} of user {uid} holds rule `b`");
    for (name, words) in [
        (
            "c",
            "no rule `c`: superhue ctl rules lists the rules in force",
        ),
        ("off", "off.toml:1) leaves its processes alone"),
        ("empty", "empty.toml:1) has no process now"),
        ("b", &owner),
    ] {
        let why = place.take(name, begun).unwrap_err().to_string();
        assert!(why.contains(words), "{name}: {why}");
        assert_eq!(place.held(), ["b"], "{name}");
    }
    assert_eq!(place.party.ended, [0; 0], "none of them had a hold");
    drop(first);
    place.step(NOW);
    assert!(place.take("b", begun).is_ok());
}

#[test]
fn a_connection_holds_one_rule_and_any_other_request_ends_it() {
    let mut place = Place::new();
    for (last, words) in [
        ("\"status\"", "\"done\""),
        ("\"hold\",\"rule\":\"b\"", "holds rule `a`"),
        ("\"explode\"", "this is no request"),
    ] {
        let mut stream = UnixStream::connect(&place.path).unwrap();
        stream.set_read_timeout(Some(60 * SECOND)).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut told = |place: &mut Place, request: &str| {
            writeln!(stream, "{{\"version\":1,\"request\":{request}}}").unwrap();
            place.step(NOW);
            lines.next().unwrap().unwrap()
        };
        let held = told(&mut place, "\"hold\",\"rule\":\"a\"");
        assert!(held.contains("\"answer\":\"held\""), "{held}");
        assert_eq!(place.held(), ["a"]);
        let said = told(&mut place, last);
        assert!(said.contains(words), "{said}");
        assert_eq!(place.held(), [""; 0], "{last}");
        assert!(lines.next().is_none(), "the daemon closes the connection");
    }
}

#[test]
fn the_holder_of_a_rule_has_the_last_word_on_it() {
    let (mut place, begun) = (Place::new(), Instant::now());
    for is_waiting in [false, true] {
        let mut hold = place.take("a", begun).unwrap();
        if is_waiting {
            // The answer to this comes before the last one.
            hold.keep(begun + SECOND).unwrap();
        }
        let client =
            std::thread::spawn(move || hold.finish(TrialAccount::example(0.03), begun + SECOND));
        while !client.is_finished() {
            place.step(NOW);
        }
        client.join().unwrap().unwrap();
        assert_eq!(place.held(), [""; 0], "the result ends the hold");
        assert_eq!(
            place.party.tried.pop(),
            Some(("a".to_owned(), TrialAccount::example(0.03)))
        );
    }
    // A hold that has ended has no result, nor has a client that holds nothing.
    let hold = place.take("a", begun).unwrap();
    place.step(NOW + LEASE);
    assert!(
        hold.finish(TrialAccount::example(0.03), begun + LEASE)
            .is_err()
    );
    let mut stream = UnixStream::connect(&place.path).unwrap();
    let rule = "a".to_owned();
    let request = Request::TrialEnded {
        rule,
        trial: TrialAccount::example(0.03),
    };
    stream
        .write_all(crate::ctl::written(request).as_bytes())
        .unwrap();
    place.step(NOW);
    let answer = BufReader::new(stream).lines().next().unwrap().unwrap();
    assert!(answer.contains("does not hold rule `a`"), "{answer}");
    assert_eq!(place.party.tried, []);
}

#[test]
fn a_reload_that_changes_a_rule_ends_its_hold() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let mut hold = place.take("a", begun).unwrap();
    // It stands elsewhere, and another one is gone.
    place.party.rules.retain(|rule| &*rule.name == "a");
    place.party.rules[0].place = "a.toml:9".to_owned();
    let rules = place.party.rules.clone();
    place.party.holds.follow(&rules);
    assert_eq!(place.held(), ["a"]);
    hold.keep(begun + SECOND).unwrap();
    place.step(NOW + SECOND);
    let held = hold.keep(begun + SECOND).unwrap();
    assert_eq!(held.rule.place, "a.toml:9");

    let changed = PlacementOptions {
        swap: true,
        ..PlacementOptions::default()
    };
    place.party.rules = vec![rule("a", Some(changed))];
    let rules = place.party.rules.clone();
    place.party.holds.follow(&rules);
    assert_eq!(place.held(), [""; 0], "at once");
    // As a rule of the same name it may be held again.
    let _again = place.take("a", begun).unwrap();
    hold.keep(begun + 2 * SECOND).unwrap();
    place.step(NOW + 2 * SECOND);
    let why = hold.keep(begun + 2 * SECOND).unwrap_err().to_string();
    assert!(why.contains("a reload has changed or removed"), "{why}");
    place.step(NOW + 2 * SECOND);
    assert_eq!(place.held(), ["a"], "that of the other client stays");
}

#[test]
fn the_account_names_the_process_that_holds_a_rule() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let hold = place.take("a", begun).unwrap();
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let mut expected = HoldAccount {
        rule: "a".to_owned(),
        pid: Some(pid),
        uid: Some(uid),
    };
    assert_eq!(place.party.holds.account(), [expected.clone()]);
    assert_eq!(expected.owner(), format!("process {pid} of user {uid}"));
    expected.pid = None;
    assert!(expected.owner().contains("outside of the daemon's PID"));
    drop(hold);
    place.step(NOW);
    assert_eq!(place.party.holds.account(), []);
}

impl Place {
    /// Lets the daemon do what it is woken up for.
    fn step_if_woken(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let at_once = Timespec::default();
        loop {
            let mut server = [PollFd::new(&self.server, PollFlags::IN)];
            if poll(&mut server, Some(&at_once)).unwrap() == 0 {
                return;
            }
            self.server.step(NOW, &mut self.party);
        }
    }
}

#[test]
fn requests_that_arrive_together_are_answered_one_after_the_other() {
    let mut place = Place::new();
    let mut stream = UnixStream::connect(&place.path).unwrap();
    stream.set_read_timeout(Some(60 * SECOND)).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let hold = "{\"version\":1,\"request\":\"hold\",\"rule\":\"a\"}\n";
    // The third is not whole yet.
    let (begin, rest) = hold.split_at(20);
    let together = format!("{hold}{hold}{begin}");
    stream.write_all(together.as_bytes()).unwrap();
    place.step_if_woken();
    assert_eq!(place.server.served(), (2, 0));
    stream.write_all(rest.as_bytes()).unwrap();
    place.step_if_woken();
    assert_eq!(place.server.served(), (3, 0));
    for _ in 0..3 {
        let held = lines.next().unwrap().unwrap();
        assert!(held.contains("\"answer\":\"held\""), "{held}");
    }
    assert_eq!(place.held(), ["a"]);
}

#[test]
fn holds_have_a_part_of_the_connections_only() {
    let (mut place, begun) = (Place::new(), Instant::now());
    let names: Vec<String> = (0..=MAX_LEASED).map(|rule| format!("r{rule}")).collect();
    let on = |name: &String| rule(name, Some(PlacementOptions::default()));
    place.party.rules = names.iter().map(on).collect();
    let most = match superhue_testing::is_root() {
        true => MAX_LEASED,
        false => MAX_LEASED_OF_ONE_USER,
    };
    let take = |place: &mut Place, name: &String| place.take(name, begun);
    let first = names.iter().take(most);
    let mut holds: Vec<RuleHold> = first.map(|name| take(&mut place, name).unwrap()).collect();
    let why = take(&mut place, &names[most]).unwrap_err().to_string();
    assert!(why.starts_with("too many connections hold rules"), "{why}");
    assert_eq!(place.held().len(), most);
    // Existing holds may be extended.
    holds[0].keep(begun + SECOND).unwrap();
    place.step(NOW + SECOND);
    holds[0].keep(begun + SECOND).unwrap();
    // Only the request for a hold is refused.
    let mut stream = UnixStream::connect(&place.path).unwrap();
    writeln!(stream, "{{\"version\":1,\"request\":\"status\"}}").unwrap();
    place.step(NOW);
    let answer = BufReader::new(stream).lines().next().unwrap().unwrap();
    assert!(answer.contains("\"done\""), "{answer}");
    holds.pop();
    place.step(NOW);
    holds.push(take(&mut place, &names[most]).unwrap());
}

#[test]
fn a_client_does_not_keep_a_hold_by_an_answer_that_it_does_not_fetch() {
    let (mut place, patience) = (Place::new(), Duration::from_secs(5));
    // More than the socket takes.
    place.party.text = "x".repeat(8 << 20);
    let mut stream = UnixStream::connect(&place.path).unwrap();
    for request in ["\"hold\",\"rule\":\"a\"", "\"status\""] {
        writeln!(stream, "{{\"version\":1,\"request\":{request}}}").unwrap();
        place.step(NOW);
    }
    assert_eq!(place.held(), ["a"]);
    assert_eq!(place.server.due(), Some(NOW + patience));
    place.step(NOW + patience);
    assert_eq!(place.held(), [""; 0]);
}
