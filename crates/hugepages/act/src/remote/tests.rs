//! Both sides, over a pair of sockets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use superhue_model::{
    Action, ActionResult, ByteCount, CollapseBound, Effect, ObjectId, Outcome, PageCount, Plan,
    ProcessId, Region, Share, SkipReason, VirtAddr,
};

use super::wire::{Frames, MOST_ACTIONS};
use super::*;
use crate::{Actuator, Mappers};

const PROCESS: ProcessId = ProcessId {
    pid: 7,
    start_ticks: 8,
};
const TERMS: Terms = Terms {
    budget: Share::Bytes(ByteCount(1 << 30)),
    rate: None,
};

fn region(number: u64) -> Region {
    Region::containing(VirtAddr(number << 21))
}

fn collapse(number: u64) -> Action {
    Action::Collapse {
        owner: PROCESS.into(),
        region: region(number),
        growth: PageCount(0),
    }
}

fn plan(numbers: std::ops::Range<u64>) -> Plan {
    Plan::of(numbers.map(collapse).collect())
}

/// The plan, with a bound on the collapses of its process.
fn bounded(numbers: std::ops::Range<u64>, micros: u64) -> Plan {
    Plan {
        bounds: vec![CollapseBound {
            owner: PROCESS.into(),
            left: Duration::from_micros(micros),
        }],
        ..plan(numbers)
    }
}

fn effects(outcome: &Outcome) -> Vec<Effect> {
    outcome.results.iter().map(|result| result.effect).collect()
}

/// An actuator that succeeds with all actions, and records them. It calls `stop` before each one, as the real one does.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Action>>>);

impl Actuator for Recorder {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        let result = |&action: &Action| {
            let effect = match stop() {
                true => Effect::Skipped {
                    reason: SkipReason::Cancelled,
                },
                false => {
                    self.0.lock().unwrap().push(action);
                    Effect::Done
                }
            };
            ActionResult {
                action,
                effect,
                took: Duration::from_micros(1),
            }
        };
        Outcome {
            results: plan.actions.iter().map(result).collect(),
        }
    }
}

/// A service in a thread, for `clients` clients in turn.
fn service(
    folder: &tempfile::TempDir,
    clients: usize,
    serve_one: impl Fn(UnixStream) -> Result<(), ServeError> + Send + 'static,
) -> (UserService, JoinHandle<Vec<Result<(), ServeError>>>) {
    let path = folder.path().join("users.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = thread::spawn(move || {
        let served = (0..clients).map(|_| serve_one(listener.accept().unwrap().0));
        served.collect()
    });
    (UserService::at(&path), thread)
}

#[test]
fn a_plan_is_carried_out_by_another_and_its_outcome_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::default();
    let theirs = recorder.clone();
    let (service, thread) = service(&folder, 1, move |stream| {
        let make = |_: MapperTable| Box::new(theirs.clone()) as Box<dyn Actuator>;
        serve(stream, std::process::id(), TERMS, make)
    });
    let connection = service.connect().unwrap();
    assert_eq!(connection.terms(), TERMS);
    let mut remote = RemoteActuator::new(service, Some(connection));
    let all = plan(0..3 * MOST_ACTIONS as u64 + 5);
    let outcome = remote.perform(&all, &|| false);
    assert_eq!(effects(&outcome), vec![Effect::Done; all.actions.len()]);
    assert_eq!(*recorder.0.lock().unwrap(), all.actions);
    assert!(
        remote
            .perform(&Plan::default(), &|| false)
            .results
            .is_empty()
    );
    drop(remote);
    assert!(matches!(thread.join().unwrap()[..], [Ok(())]));
}

#[test]
fn who_maps_an_object_is_told_along() {
    let folder = tempfile::tempdir().unwrap();
    let object = ObjectId {
        device: (0, 1),
        inode: 2,
    };
    let heard = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&heard);
    struct MapperActuator(Mappers, Arc<Mutex<Vec<(ProcessId, Region)>>>, ObjectId);
    impl Actuator for MapperActuator {
        fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
            *self.1.lock().unwrap() = (self.0)(self.2, region(3));
            Recorder::default().perform(plan, stop)
        }
    }
    let (service, thread) = service(&folder, 1, move |stream| {
        serve(stream, std::process::id(), TERMS, |ways| {
            Box::new(MapperActuator(ways.mappers(), theirs.clone(), object))
        })
    });
    let many: Vec<(ProcessId, Region)> = (0..9).map(|number| (PROCESS, region(number))).collect();
    let mut remote =
        RemoteActuator::new(service, None).with_mappers(Box::new(move |_, _| many.clone()));
    let plan = Plan::of(vec![Action::Collapse {
        owner: object.into(),
        region: region(3),
        growth: PageCount(0),
    }]);
    assert_eq!(effects(&remote.perform(&plan, &|| false)), [Effect::Done]);
    let heard = heard.lock().unwrap().clone();
    assert_eq!(heard.len(), 4, "{heard:?}");
    drop(remote);
    thread.join().unwrap();
}

#[test]
fn what_is_refused_or_not_there_is_told_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = UserService::at(&folder.path().join("none"));
    let error = nobody.connect().unwrap_err();
    assert!(matches!(error, ServiceError::NotThere(_)), "{error}");
    let answers = Mutex::new(
        [
            framed(&Greeting::Refused {
                text: "you may not".to_owned(),
            }),
            framed(&Greeting::Welcome {
                version: VERSION + 1,
                client: std::process::id(),
                terms: TERMS,
            }),
            framed(&Greeting::Welcome {
                version: VERSION,
                client: 0,
                terms: TERMS,
            }),
            Ok(vec![0xff; 4]),
            Ok(b"\x02\0\0\0{}".to_vec()),
            Ok(Vec::new()),
        ]
        .map(Result::unwrap)
        .into_iter(),
    );
    let (service, thread) = service(&folder, 6, move |mut stream| {
        let answer = answers.lock().unwrap().next().unwrap();
        Ok(stream.write_all(&answer)?)
    });
    let mut heard = (0..6).map(|_| service.connect().unwrap_err());
    let mut next = || heard.next().unwrap();
    assert_eq!(next().to_string(), "you may not");
    assert!(next().to_string().contains("speaks version 2"));
    assert!(matches!(next(), ServiceError::OtherNamespace(_)));
    for why in ["4294967295 bytes", "missing field", "closed the connection"] {
        let error = next();
        assert!(matches!(error, ServiceError::NotUnderstood { .. }));
        assert!(error.to_string().contains(why), "{error}");
    }
    thread.join().unwrap();
}

#[test]
fn a_service_that_lies_or_dies_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (service, thread) = service(&folder, 1, |mut stream| {
        let welcome = Greeting::Welcome {
            version: VERSION,
            client: std::process::id(),
            terms: TERMS,
        };
        stream.write_all(&framed(&welcome)?)?;
        // The reply is about another region than the order.
        let other = Recorder::default().perform(&plan(9..10), &|| false);
        stream.write_all(&framed(&serde_json::json!({ "outcome": other }))?)?;
        Ok(())
    });
    let mut remote = RemoteActuator::new(service, None);
    let lost = Effect::Skipped {
        reason: SkipReason::ServiceLost,
    };
    assert_eq!(
        effects(&remote.perform(&plan(0..2), &|| false)),
        [lost, lost]
    );
    thread.join().unwrap();
    // The service is gone now, and the actuator does not connect again at once.
    assert_eq!(effects(&remote.perform(&plan(0..1), &|| false)), [lost]);
}

/// Stops a plan of three actions after the first one; returns the effects, and the result of the service.
fn stopped_plan() -> (Vec<Effect>, Vec<Result<(), ServeError>>) {
    let folder = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    // Does one action, and then waits until the client has gone.
    struct Slow(Arc<AtomicBool>);
    impl Actuator for Slow {
        fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
            let (first, rest) = plan.actions.split_at(1);
            let done = |actions: &[Action], stop: &dyn Fn() -> bool| {
                let actions = actions.to_vec();
                Recorder::default()
                    .perform(&Plan::of(actions), stop)
                    .results
            };
            let mut results = done(first, &|| false);
            self.0.store(true, Ordering::SeqCst);
            while !stop() {
                thread::yield_now();
            }
            results.extend(done(rest, stop));
            Outcome { results }
        }
    }
    let (service, thread) = service(&folder, 1, move |stream| {
        let make = |_: MapperTable| Box::new(Slow(Arc::clone(&seen))) as Box<dyn Actuator>;
        serve(stream, std::process::id(), TERMS, make)
    });
    let mut remote = RemoteActuator::new(service, None);
    let outcome = remote.perform(&plan(0..3), &|| stop.load(Ordering::SeqCst));
    drop(remote);
    (effects(&outcome), thread.join().unwrap())
}

#[test]
fn a_stop_is_not_held_up_and_returns_what_was_done() {
    let [lost, cancelled] =
        [SkipReason::ServiceLost, SkipReason::Cancelled].map(|reason| Effect::Skipped { reason });
    let (mut told, mut served) = stopped_plan();
    // On a busy machine the service may get no CPU for as long as a stopped client waits for it.
    for _ in 0..20 {
        if told != [lost; 3] {
            break;
        }
        (told, served) = stopped_plan();
    }
    assert_eq!(told, [Effect::Done, cancelled, cancelled]);
    assert!(matches!(served[..], [Ok(())]));
}

/// Records the time that the plans allow for `PROCESS`.
struct BoundRecorder(Arc<Mutex<Vec<Option<Duration>>>>);

impl Actuator for BoundRecorder {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        self.0.lock().unwrap().push(plan.left(PROCESS.into()));
        Recorder::default().perform(plan, stop)
    }
}

#[test]
fn bounds_reach_the_service_less_what_was_spent() {
    let folder = tempfile::tempdir().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&heard);
    let (service, thread) = service(&folder, 1, move |stream| {
        let make =
            |_: MapperTable| Box::new(BoundRecorder(Arc::clone(&theirs))) as Box<dyn Actuator>;
        serve(stream, std::process::id(), TERMS, make)
    });
    let mut remote = RemoteActuator::new(service, None);
    let done = remote.perform(&bounded(0..130, 200), &|| false);
    assert_eq!(done.results.len(), 130);
    remote.perform(&plan(0..1), &|| false);
    // Each takes a microsecond, and an order has 128 actions.
    let micros = |left| Some(Duration::from_micros(left));
    assert_eq!(*heard.lock().unwrap(), [micros(200), micros(72), None]);
    drop(remote);
    thread.join().unwrap();
}

/// Sends `bytes` to a worker, and returns its result.
fn said(bytes: &[u8]) -> Result<(), ServeError> {
    let (mut client, worker) = UnixStream::pair().unwrap();
    let worker = thread::spawn(move || {
        let make = |_: MapperTable| Box::new(Recorder::default()) as Box<dyn Actuator>;
        serve(worker, 1, TERMS, make)
    });
    // The worker may have closed the stream before all bytes were sent.
    let _ = client.write_all(bytes);
    let _ = client.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    let _ = client.read_to_end(&mut answers);
    worker.join().unwrap()
}

#[test]
fn whatever_is_no_order_ends_the_worker() {
    let order = |plan: &Plan| framed(&serde_json::json!({ "plan": plan })).unwrap();
    assert!(said(b"").is_ok());
    assert!(said(&order(&plan(0..128))).is_ok());
    assert!(said(&order(&plan(0..2)).repeat(50)).is_ok());
    let deep = [&[0xff, 0xff, 3, 0][..], &[b'['; 262_143]].concat();
    let huge = [0xff; 100_000];
    let cut = order(&plan(0..9));
    let ways = serde_json::json!({
        "plan": { "actions": [] },
        "ways": [{
            "object": { "device": [0, 1], "inode": 2 },
            "region": 1,
            "through": vec![(PROCESS, region(1)); 5],
        }],
    });
    let number = b"\x2f\0\0\0{\"plan\":{\"actions\":[{\"do\":\"split\",\"process\":1}]}}";
    for wrong in [
        &deep[..],
        &huge,
        &cut[..cut.len() - 1],
        &order(&plan(0..129)),
        &framed(&ways).unwrap(),
        number,
        b"\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let error = said(wrong).unwrap_err();
        assert!(matches!(error, ServeError::Malformed(_)), "{error}");
    }
}

#[test]
fn messages_are_found_however_they_are_cut() {
    let bytes = [framed(&"a").unwrap(), framed(&"bcd").unwrap()].concat();
    let mut frames = Frames::default();
    let mut found: Vec<String> = Vec::new();
    for byte in bytes {
        frames.push(&[byte]);
        found.extend(frames.take::<String>().unwrap());
    }
    assert_eq!(found, ["a", "bcd"]);
    assert!(!frames.is_within());
    let long = "x".repeat(MAX_MESSAGE_BYTES);
    assert!(framed(&long).is_err());
}

/// The regions of `PROCESS`: number of resident pages, and true if the region is huge.
#[derive(Clone, Default)]
struct FakeRegions(Arc<Mutex<BTreeMap<Region, (u64, bool)>>>);

impl FakeRegions {
    fn set(&self, number: u64, resident: u64, is_huge: bool) {
        let mut seen = self.0.lock().unwrap();
        seen.insert(region(number), (resident, is_huge));
    }
}

impl ResidencyView for FakeRegions {
    fn resident(&self, process: ProcessId, region: Region) -> Option<PageCount> {
        let seen = self.0.lock().unwrap();
        let known = seen.get(&region).filter(|_| process == PROCESS);
        known.map(|(resident, _)| PageCount(*resident))
    }

    fn is_huge(&self, _: ProcessId, region: Region) -> Option<bool> {
        let seen = self.0.lock().unwrap();
        seen.get(&region).map(|(_, is_huge)| *is_huge)
    }

    fn anonymous(&self, process: ProcessId) -> Option<ByteCount> {
        (process == PROCESS).then_some(ByteCount(100 << 20))
    }

    fn runs(&self, process: ProcessId) -> bool {
        process == PROCESS
    }
}

fn metered(budget: Share, rate: Option<u64>) -> (LimitedActuator<Recorder>, FakeRegions, Recorder) {
    let (seen, recorder) = (FakeRegions::default(), Recorder::default());
    let terms = Terms {
        budget,
        rate: rate.map(ByteCount),
    };
    let sight = Box::new(seen.clone());
    let mappers = Box::new(|_, _| Vec::new());
    let metered = LimitedActuator::new(recorder.clone(), sight, terms, mappers);
    (metered, seen, recorder)
}

const OVER: Effect = Effect::Skipped {
    reason: SkipReason::UserBudget,
};

#[test]
fn the_budget_counts_what_is_there_and_not_what_the_client_says() {
    let (mut metered, seen, recorder) = metered(Share::Bytes(ByteCount(4096 * 600)), None);
    for number in 0..3 {
        seen.set(number, 212, true);
    }
    seen.set(3, 512, true);
    // 300 pages each, although the plan says none; a full region costs nothing.
    let outcome = metered.perform(&plan(0..5), &|| false);
    assert_eq!(
        effects(&outcome),
        [Effect::Done, Effect::Done, OVER, Effect::Done, OVER],
        "what cannot be seen counts in full"
    );
    assert_eq!(
        outcome.results[0].action,
        collapse(0),
        "as it was asked for"
    );
    let done = recorder.0.lock().unwrap().clone();
    assert_eq!(done[0].growth(), PageCount(300), "as it is");
}

#[test]
fn each_action_has_the_bound_that_is_left_of_its_plan() {
    let (heard, seen) = (Arc::new(Mutex::new(Vec::new())), FakeRegions::default());
    (0..3).for_each(|number| seen.set(number, 512, false));
    let terms = Terms {
        budget: Share::Bytes(ByteCount(0)),
        rate: None,
    };
    let inner = BoundRecorder(Arc::clone(&heard));
    let mappers = Box::new(|_, _| Vec::new());
    let mut metered = LimitedActuator::new(inner, Box::new(seen), terms, mappers);
    let outcome = metered.perform(&bounded(0..3, 200), &|| false);
    assert_eq!(effects(&outcome), [Effect::Done; 3]);
    // Each takes a microsecond.
    let left = [200, 199, 198].map(|left| Some(Duration::from_micros(left)));
    assert_eq!(*heard.lock().unwrap(), left);
}

#[test]
fn what_is_huge_no_more_is_given_back() {
    let (mut metered, seen, _) = metered(Share::Bytes(ByteCount(4096 * 512)), None);
    seen.set(0, 0, true);
    seen.set(1, 0, true);
    assert_eq!(
        effects(&metered.perform(&plan(0..2), &|| false)),
        [Effect::Done, OVER]
    );
    let split = Plan::of(vec![Action::Split {
        owner: PROCESS.into(),
        region: region(0),
    }]);
    metered.perform(&split, &|| false);
    assert_eq!(
        effects(&metered.perform(&plan(1..2), &|| false)),
        [Effect::Done]
    );
    // The program has unmapped the region; the worker sees that within a second or so, however slow the machine is.
    seen.set(1, 0, false);
    for _ in 0..6000 {
        if effects(&metered.perform(&plan(0..1), &|| false)) == [Effect::Done] {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing is given back");
}

#[test]
fn a_share_is_one_of_the_processes_that_can_be_seen() {
    // The budget: 1 MiB of 100.
    let (mut metered, seen, _) = metered(Share::BasisPoints(100), None);
    seen.set(0, 256, true);
    seen.set(1, 511, true);
    let others = (8..5000).map(|pid| Action::Collapse {
        owner: ProcessId { pid, ..PROCESS }.into(),
        region: region(2),
        growth: PageCount(0),
    });
    let others = Plan::of(others.collect());
    assert!(
        effects(&metered.perform(&others, &|| false))
            .iter()
            .all(|it| *it == OVER)
    );
    assert_eq!(
        effects(&metered.perform(&plan(0..2), &|| false)),
        [Effect::Done, OVER]
    );
    metered.housekeep();
}

#[test]
fn collapses_for_a_client_keep_to_their_bound() {
    let (mut metered, seen, _) = metered(Share::Bytes(ByteCount(0)), None);
    for number in 0..5 {
        seen.set(number, 512, false);
    }
    let outcome = metered.perform(&bounded(0..5, 3), &|| false);
    let cancelled = Effect::Skipped {
        reason: SkipReason::Cancelled,
    };
    let [done, late] = [Effect::Done, cancelled];
    assert_eq!(effects(&outcome), [done, done, done, late, late]);
}

#[test]
fn no_more_is_collapsed_in_a_second_than_the_rate() {
    let (mut metered, seen, _) = metered(Share::Bytes(ByteCount(0)), Some(4 << 20));
    for number in 0..100 {
        seen.set(number, 512, false);
    }
    let outcome = metered.perform(&plan(0..100), &|| false);
    let slow = Effect::Skipped {
        reason: SkipReason::UserRate,
    };
    let done = effects(&outcome)
        .iter()
        .filter(|it| **it == Effect::Done)
        .count();
    // Two were saved up; on a machine that takes seconds for this there are more.
    assert!((2..50).contains(&done), "{done}");
    assert_eq!(
        effects(&outcome).iter().filter(|it| **it == slow).count(),
        100 - done
    );
    for _ in 0..6000 {
        if effects(&metered.perform(&plan(0..1), &|| false)) == [Effect::Done] {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the rate does not come back");
}

#[test]
fn a_stop_cancels_the_rest() {
    let (mut metered, ..) = metered(Share::Bytes(ByteCount(1 << 30)), None);
    let cancelled = Effect::Skipped {
        reason: SkipReason::Cancelled,
    };
    assert_eq!(
        effects(&metered.perform(&plan(0..2), &|| true)),
        [cancelled; 2]
    );
}
