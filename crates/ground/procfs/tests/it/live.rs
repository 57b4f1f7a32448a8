//! Tests of `process` on living, exited and forbidden processes of this machine.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::{env, thread};

use superhue_model::{PageCount, ProcessId, VmaKind};
use superhue_procfs::process::{
    PageScanner, all, check_view, cpu_now, descendants, identify, maps, memory_use, named_maps,
    resident_now, session_members, stat, status, still_is, view, vma_uses,
};
use superhue_procfs::{ReadError, Roots};
use superhue_testing::{ChildGuard, NOBODY, has_passed, rerun, skip};

use crate::support::why_unseen;

fn own_pid() -> u32 {
    std::process::id()
}

#[test]
fn we_can_look_at_ourselves() {
    let roots = Roots::default();
    let id = identify(&roots, own_pid()).unwrap();
    assert!(still_is(&roots, id));
    assert!(!still_is(
        &roots,
        ProcessId {
            start_ticks: id.start_ticks + 1,
            ..id
        }
    ));

    let own = stat(&roots, id.pid).unwrap();
    assert_eq!(own.parent, std::os::unix::process::parent_id());
    assert!(!own.is_kernel_thread() && !own.is_zombie());
    assert!(own.threads >= 1 && own.min_faults > 0);

    let sizes = status(&roots, id.pid).unwrap();
    assert!(sizes.rss_anon.unwrap().0 > 0 && sizes.peak_rss >= sizes.rss);
    assert!(resident_now(&roots, id.pid).unwrap().total > PageCount(0));
    assert!(cpu_now(&roots, id.pid).is_ok());

    let named = named_maps(&roots, id.pid).unwrap();
    let here = (&raw const roots).addr() as u64;
    let holds = |vma: &superhue_model::Vma| (vma.range.start.0..vma.range.end.0).contains(&here);
    assert!(
        named
            .iter()
            .any(|named| holds(&named.vma) && named.vma.writable)
    );
    assert!(named.iter().any(|named| named.vma.kind == VmaKind::Special));
    assert!(named.iter().any(|named| named.label().starts_with("libc.")));
}

#[test]
fn exact_sizes_are_those_of_the_vmas() {
    // A sleeping process does not change between the two reads.
    let child = ChildGuard::sleeper();
    let roots = Roots::default();
    wait_until_asleep(&roots, child.pid());
    let total = match memory_use(&roots, child.pid()) {
        Err(error @ ReadError::Missing { .. }) => return skip("smaps", &error.to_string()),
        total => total.unwrap(),
    };
    let vmas = vma_uses(&roots, child.pid()).unwrap();
    assert!(
        vmas.iter()
            .map(|vma| &vma.vma)
            .eq(&maps(&roots, child.pid()).unwrap())
    );
    let sum = vmas.iter().map(|vma| vma.memory.rss.unwrap()).sum();
    assert_eq!(total.rss, Some(sum));
    let sum = vmas.iter().map(|vma| vma.memory.anonymous.unwrap()).sum();
    assert_eq!(total.anonymous, Some(sum));
}

#[test]
fn another_process_can_be_viewed() {
    let child = ChildGuard::sleeper();
    let roots = Roots::default();
    let id = identify(&roots, child.pid()).unwrap();
    let seen = match view(&roots, &mut PageScanner::new(), id) {
        Err(error @ ReadError::Missing { .. }) => return skip("pagemap", &error.to_string()),
        seen => seen.unwrap(),
    };
    check_view(&roots, &mut PageScanner::new(), id).unwrap();
    assert_eq!(seen.id, id);
    assert!(seen.rss.unwrap().0 > 0);
    assert_eq!(
        seen.vmas
            .iter()
            .filter(|vma| vma.kind == VmaKind::Stack)
            .count(),
        1
    );
}

/// Waits until the program has started and sleeps. This ends: it sleeps for longer than any test.
fn wait_until_asleep(roots: &Roots, pid: u32) {
    while stat(roots, pid).unwrap().state != 'S' || stat(roots, pid).unwrap().comm != "sleep" {
        thread::yield_now();
    }
}

#[test]
fn a_process_that_executes_programs_all_the_time_has_memory() {
    let roots = Roots::default();
    let script = r#"exec sh -c "$0" "$0""#;
    let child = ChildGuard::spawn(Command::new("sh").args(["-c", script, script]));
    let pid = child.pid();
    let id = identify(&roots, pid).unwrap();
    for _ in 0..2000 {
        assert!(!maps(&roots, pid).unwrap().is_empty());
        assert!(!named_maps(&roots, pid).unwrap().is_empty());
        match memory_use(&roots, pid) {
            Err(error @ ReadError::Missing { .. }) => return skip("smaps", &error.to_string()),
            used => assert!(used.is_ok(), "{used:?}"),
        }
    }
    assert!(still_is(&roots, id));
}

#[test]
fn an_exited_process_is_first_a_zombie_and_then_nothing() {
    let roots = Roots::default();
    let mut child = ChildGuard::sleeper();
    let pid = child.pid();
    let id = identify(&roots, pid).unwrap();
    child.0.kill().unwrap();
    while !stat(&roots, pid).unwrap().is_zombie() {
        thread::yield_now();
    }
    // No process has waited for it: it still has its number, and no memory.
    assert!(still_is(&roots, id));
    assert!(maps(&roots, pid).unwrap_err().is_vanished());
    assert!(memory_use(&roots, pid).unwrap_err().is_vanished());
    assert!(vma_uses(&roots, pid).unwrap_err().is_vanished());
    assert!(why_unseen(&roots, id).is_vanished());
    assert!(!all(&roots).unwrap().contains(&pid));

    child.0.wait().unwrap();
    assert!(!still_is(&roots, id));
    assert!(identify(&roots, pid).unwrap_err().is_vanished());
    assert!(why_unseen(&roots, id).is_vanished());
}

#[test]
fn a_kernel_thread_is_called_one() {
    let roots = Roots::default();
    // 2 is kthreadd, except in a PID namespace of its own.
    match stat(&roots, 2) {
        Ok(stat) if stat.is_kernel_thread() => {}
        _ => return skip("kernel-thread", "process 2 is no kernel thread here"),
    }
    let id = identify(&roots, 2).unwrap();
    let is_kernel_thread = |error| matches!(error, ReadError::KernelThread { pid: 2 });
    assert!(is_kernel_thread(why_unseen(&roots, id)));
    if rustix::process::geteuid().is_root() {
        assert!(is_kernel_thread(maps(&roots, 2).unwrap_err()));
        assert!(is_kernel_thread(memory_use(&roots, 2).unwrap_err()));
    }
    assert!(!all(&roots).unwrap().contains(&2));
}

#[test]
fn descendants_and_session_are_found() {
    let roots = Roots::default();
    let mut shell = ChildGuard::spawn(
        Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped()),
    );
    let mut line = String::new();
    BufReader::new(shell.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let grandchild: u32 = line.trim().parse().unwrap();

    assert_eq!(descendants(&roots, shell.pid()).unwrap(), [grandchild]);
    let ours = descendants(&roots, own_pid()).unwrap();
    assert!(ours.contains(&shell.pid()) && ours.contains(&grandchild));
    assert!(!ours.contains(&own_pid()));
    let everyone = all(&roots).unwrap();
    assert!(everyone.contains(&own_pid()) && everyone.contains(&grandchild));
    let session = stat(&roots, own_pid()).unwrap().session.unwrap();
    let members = session_members(&roots, &[session].into()).unwrap();
    let has = |pid| {
        members
            .iter()
            .any(|&(id, of)| (id.pid, of) == (pid, session))
    };
    assert!(has(own_pid()) && has(grandchild));

    Command::new("kill")
        .arg(grandchild.to_string())
        .status()
        .unwrap();
}

/// Set for the copy of this test binary that runs as another user.
const FORBIDDEN: &str = "SUPERHUE_TEST_FORBIDDEN_PID";

#[test]
fn what_may_not_be_read_is_denied_and_not_gone() {
    let roots = Roots::default();
    if let Ok(pid) = env::var(FORBIDDEN) {
        let pid = pid.parse().unwrap();
        let id = identify(&roots, pid).unwrap();
        assert!(resident_now(&roots, pid).is_ok());
        let is_denied = |error: ReadError| {
            assert!(error.to_string().contains("CAP_SYS_PTRACE"), "{error}");
            matches!(error, ReadError::Denied { .. })
        };
        assert!(is_denied(maps(&roots, pid).unwrap_err()));
        assert!(is_denied(memory_use(&roots, pid).unwrap_err()));
        assert!(is_denied(why_unseen(&roots, id)));
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("other-user", "only root can become another user");
    }
    let child = ChildGuard::sleeper();
    let test = "what_may_not_be_read_is_denied_and_not_gone";
    let copy = rerun(module_path!(), test)
        .env(FORBIDDEN, child.pid().to_string())
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output();
    match copy {
        Ok(copy) => {
            let said = String::from_utf8_lossy(&copy.stdout);
            assert!(has_passed(&copy), "{said}");
        }
        Err(error) => skip(
            "other-user",
            &format!("cannot run as another user: {error}"),
        ),
    }
}
