use super::contents::SCHEMA;
use super::*;
use crate::setting::RAISED_BY_KERNEL;
use crate::{Setting, SettingsGuard};

/// A sysfs with the two settings the tests use, and a journal beside it.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(folder.join("khugepaged")).unwrap();
        fs::write(folder.join("enabled"), "always [madvise] never\n").unwrap();
        fs::write(folder.join("khugepaged/defrag"), "1\n").unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        Self { root }
    }

    fn journal(&self) -> Journal {
        Journal {
            patience: Duration::from_millis(20),
            ..Journal::at(
                self.root.path().join("run/journal"),
                &Roots::under(self.root.path()),
            )
        }
    }

    fn sys(&self) -> PathBuf {
        self.root.path().join("sys")
    }

    fn value(&self, knob: &str) -> String {
        read_setting(&self.sys().join("kernel/mm/transparent_hugepage").join(knob)).unwrap()
    }

    fn apply(&self, settings: &[&str]) -> Result<SettingsGuard, SettingsError> {
        let settings: Vec<Setting> = settings.iter().map(|s| s.parse().unwrap()).collect();
        SettingsGuard::apply(&self.journal(), &self.sys(), &settings)
    }

    fn journals(&self) -> usize {
        let folder = Folder::open(self.journal().folder()).unwrap();
        folder.map_or(0, |folder| files(&folder).unwrap().len())
    }
}

#[test]
fn settings_hold_until_the_guard_goes() {
    let machine = Machine::new();
    let guard = machine
        .apply(&["enabled=always", "khugepaged/defrag=0"])
        .unwrap();
    assert_eq!(machine.value("enabled"), "always");
    assert_eq!(machine.value("khugepaged/defrag"), "0");
    assert_eq!(machine.journals(), 1);
    let report = guard.finish();
    assert_eq!(report.restored.len(), 2);
    assert_eq!(machine.value("enabled"), "madvise");
    assert_eq!(machine.value("khugepaged/defrag"), "1");
    assert_eq!(machine.journals(), 0);
}

#[test]
fn a_dead_owners_changes_are_undone_and_a_live_ones_are_not() {
    let machine = Machine::new();
    let guard = machine.apply(&["enabled=never"]).unwrap();
    let alive = machine.journal().recover().unwrap();
    assert_eq!((alive.in_use, alive.restored.len()), (1, 0));
    assert_eq!(machine.value("enabled"), "never");
    assert!(matches!(
        machine.apply(&["enabled=always"]),
        Err(SettingsError::Busy { .. })
    ));

    // Death as the kernel sees it: the lock is gone, nothing was undone.
    drop(guard.pending_for_test());
    let dead = machine.journal().recover().unwrap();
    assert_eq!((dead.in_use, dead.restored.len()), (0, 1));
    assert_eq!(machine.value("enabled"), "madvise");
    assert_eq!(
        machine.journal().recover().unwrap(),
        RestoreReport::default()
    );
}

#[test]
fn a_change_after_a_death_finds_the_users_value() {
    let machine = Machine::new();
    drop(
        machine
            .apply(&["enabled=never"])
            .unwrap()
            .pending_for_test(),
    );
    drop(machine.apply(&["enabled=always"]).unwrap());
    assert_eq!(machine.value("enabled"), "madvise");
}

#[test]
fn what_somebody_else_set_since_is_left_alone() {
    let machine = Machine::new();
    let guard = machine.apply(&["enabled=never"]).unwrap();
    let file = machine.sys().join("kernel/mm/transparent_hugepage/enabled");
    fs::write(file, "[always] madvise never\n").unwrap();
    let report = guard.finish();
    assert_eq!((report.restored.len(), report.left.len()), (0, 1));
    assert_eq!(machine.value("enabled"), "always");
    assert_eq!(machine.journals(), 0);
}

#[test]
fn a_journal_from_before_a_reboot_or_of_nonsense_is_void() {
    let machine = Machine::new();
    drop(
        machine
            .apply(&["enabled=never"])
            .unwrap()
            .pending_for_test(),
    );
    let elsewhere = Journal {
        boot_id: "another boot".to_owned(),
        ..machine.journal()
    };
    assert_eq!(elsewhere.recover().unwrap(), RestoreReport::default());
    assert_eq!(machine.value("enabled"), "never");
    assert_eq!(machine.journals(), 0);

    fs::write(
        machine.journal().folder().join("9.json"),
        b"{\"entries\": [",
    )
    .unwrap();
    fs::write(machine.journal().folder().join("9.unfinished"), b"").unwrap();
    assert_eq!(
        machine.journal().recover().unwrap(),
        RestoreReport::default()
    );
    assert_eq!(machine.journals(), 0);
}

#[test]
fn a_refused_change_undoes_those_before_it() {
    let machine = Machine::new();
    let missing = machine.apply(&["enabled=always", "no_such_knob=1"]);
    assert!(matches!(missing, Err(SettingsError::Missing { .. })));
    assert!(matches!(
        machine.apply(&["enabled=always", "enabled=never"]),
        Err(SettingsError::Twice { .. })
    ));
    assert_eq!(machine.value("enabled"), "madvise");
    assert_eq!(
        machine.apply(&[]).unwrap().finish(),
        RestoreReport::default()
    );
}

/// Text of a journal of this boot with these entries.
fn text(machine: &Machine, entries: &[(&Path, &str, &str)]) -> String {
    let entries = entries
        .iter()
        .map(|(path, original, wanted)| SettingChange {
            path: path.to_path_buf(),
            original: (*original).to_owned(),
            wanted: (*wanted).to_owned(),
        });
    let entries = entries.map(Change::from);
    let contents = Contents {
        schema: SCHEMA.to_owned(),
        boot_id: machine.journal().boot_id,
        pid: 9,
        entries: entries.collect(),
    };
    serde_json::to_string(&contents).unwrap()
}

/// Writes a journal as if a dead owner had left it.
fn plant(machine: &Machine, text: &str) {
    let path = machine.journal().folder().join("9.0.json");
    fs::write(&path, text).unwrap();
    let ours = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&path, ours).unwrap();
}

#[test]
fn journals_of_other_versions_are_undone_or_kept() {
    let machine = Machine::new();
    drop(machine.apply(&["enabled=never"]).unwrap());
    let defrag = machine
        .sys()
        .join("kernel/mm/transparent_hugepage/khugepaged/defrag");
    fs::write(&defrag, "0").unwrap();
    // As superhue 0.1 wrote it.
    let first = serde_json::json!({
        "schema": "superhue-journal/1", "boot_id": machine.journal().boot_id, "pid": 9,
        "entries": [{"path": defrag, "original": "1", "wanted": "0"}],
    });
    plant(&machine, &first.to_string());
    let report = machine.journal().recover().unwrap();
    assert_eq!((report.restored.len(), report.left.len()), (1, 0));
    assert_eq!(machine.value("khugepaged/defrag"), "1");
    assert_eq!(machine.journals(), 0);

    let newer = first.to_string().replace("journal/1", "journal/4");
    plant(&machine, &newer);
    let report = machine.journal().recover().unwrap();
    assert!(
        report.left[0].reason.contains("newer superhue"),
        "{report:?}"
    );
    assert_eq!(machine.journals(), 1);
    drop(machine.apply(&["enabled=never"]).unwrap());
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_journal_is_for_its_owner_alone() {
    let machine = Machine::new();
    let folder = machine.journal().folder;
    let guard = machine.apply(&["enabled=never"]).unwrap();
    assert_eq!(mode(&folder), 0o700);
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{path:?}");
    }
    drop(guard);
    // Superhue closes a folder that is open to other users before it writes there.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&folder, open).unwrap();
    drop(machine.apply(&["enabled=never"]).unwrap());
    assert_eq!(mode(&folder), 0o700);
}

#[test]
fn a_journal_changes_huge_page_settings_and_nothing_else() {
    let machine = Machine::new();
    drop(machine.apply(&["enabled=never"]).unwrap());
    let shadow = machine.root.path().join("shadow");
    fs::write(&shadow, "secret").unwrap();
    let settings = machine.sys().join("kernel/mm/transparent_hugepage");
    std::os::unix::fs::symlink(&shadow, settings.join("link")).unwrap();
    let journal = machine.journal().folder().join("9.0.json");
    let up = settings.join("../../../../shadow");
    let defrag = settings.join("khugepaged/defrag");
    let (link, none) = (settings.join("link"), settings.join("none"));
    for (bad, is_refused) in [
        ((shadow.as_path(), "root::0", "secret"), true),
        ((up.as_path(), "root::0", "secret"), true),
        ((defrag.as_path(), "0 0", "1"), true),
        ((link.as_path(), "root::0", "secret"), false),
        ((none.as_path(), "0", "1"), false),
    ] {
        fs::write(&journal, text(&machine, &[(&defrag, "0", "1"), bad])).unwrap();
        let report = machine.journal().recover().unwrap();
        assert_eq!(report.left.len(), 1, "{report:?}");
        assert_eq!(report.restored.is_empty(), is_refused, "{report:?}");
        assert_eq!(
            machine.value("khugepaged/defrag"),
            if is_refused { "1" } else { "0" }
        );
        assert_eq!(fs::read(&shadow).unwrap(), b"secret");
        assert!(!none.exists());
        drop(machine.apply(&["enabled=never"]).unwrap());
        let _ = fs::remove_file(&journal);
        fs::write(&defrag, "1").unwrap();
    }
}

#[test]
fn a_floor_of_free_memory_that_the_kernel_raised_is_put_back() {
    let machine = Machine::new();
    let floor = machine.root.path().join("proc/sys/vm/min_free_kbytes");
    fs::create_dir_all(floor.parent().unwrap()).unwrap();
    fs::write(&floor, "8192\n").unwrap();
    let guard = machine.apply(&["enabled=always"]).unwrap();
    // Nothing was raised here, so nothing else is put back.
    assert_eq!(guard.finish().restored.len(), 1);
    // The kernel may also change it when the switch is put back: here, while the journal is undone.
    let guard = machine.apply(&["enabled=never"]).unwrap();
    fs::write(&floor, "8192").unwrap();
    let pending = guard.pending_for_test().unwrap();
    assert_eq!(pending.settings().next().unwrap().wanted, "8192");
    drop(pending);
    assert_eq!(machine.journal().recover().unwrap().restored.len(), 1);
    for (now, wanted, expected) in [
        ("67584", RAISED_BY_KERNEL, "8192"),
        ("67584", "67584", "8192"),
        // Another program has set it since.
        ("4096", RAISED_BY_KERNEL, "4096"),
        ("90000", "67584", "90000"),
    ] {
        fs::write(&floor, now).unwrap();
        plant(&machine, &text(&machine, &[(&floor, "8192", wanted)]));
        let report = machine.journal().recover().unwrap();
        assert_eq!(read_setting(&floor).unwrap(), expected, "{report:?}");
        assert_eq!(report.left.len(), usize::from(expected == now));
    }
    for bad in ["", "-1", "8192; reboot"] {
        plant(&machine, &text(&machine, &[(&floor, bad, "67584")]));
        let report = machine.journal().recover().unwrap();
        assert!(
            report.left[0].reason.contains("never changes"),
            "{report:?}"
        );
    }
}

#[test]
fn planted_journals_are_left_alone_and_block_nobody() {
    let machine = Machine::new();
    drop(machine.apply(&["enabled=never"]).unwrap());
    let folder = machine.journal().folder;
    let defrag = machine
        .sys()
        .join("kernel/mm/transparent_hugepage/khugepaged/defrag");
    let text = text(&machine, &[(&defrag, "0", "1")]);
    let real = machine.root.path().join("real");
    fs::write(&real, &text).unwrap();
    std::os::unix::fs::symlink(&real, folder.join("1.0.json")).unwrap();
    fs::hard_link(&real, folder.join("2.0.json")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    let user = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, folder.join("3.0.json"), fifo, user, 0).unwrap();
    fs::create_dir(folder.join("4.0.json")).unwrap();
    let open = folder.join("5.0.json");
    fs::write(&open, &text).unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&open, everybody).unwrap();
    let mut planted = 5;
    if superhue_testing::is_root() {
        let path = folder.join("6.0.json");
        fs::write(&path, &text).unwrap();
        std::os::unix::fs::chown(&path, Some(superhue_testing::NOBODY), None).unwrap();
        planted += 1;
    } else {
        superhue_testing::skip("root", "cannot make a file of another user");
    }
    let report = machine.journal().recover().unwrap();
    assert_eq!(
        (report.left.len(), report.restored.len()),
        (planted, 0),
        "{report:?}"
    );
    assert_eq!(machine.value("khugepaged/defrag"), "1");
    drop(machine.apply(&["khugepaged/defrag=0"]).unwrap());
    assert_eq!(machine.value("khugepaged/defrag"), "1");
}

#[test]
fn a_lock_that_somebody_holds_ends_in_an_error() {
    let machine = Machine::new();
    drop(machine.apply(&["enabled=never"]).unwrap());
    let lock = machine.journal().folder().join("lock");
    let held = File::open(&lock).unwrap();
    held.lock().unwrap();
    let error = machine.apply(&["enabled=never"]).unwrap_err().to_string();
    assert!(error.contains("still locked after"), "{error}");
    let error = machine.journal().recover().unwrap_err().to_string();
    assert!(error.contains("still locked after"), "{error}");
    // A lock that other users can open is replaced.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&lock, everybody).unwrap();
    drop(machine.apply(&["enabled=never"]).unwrap());
    assert_eq!(mode(&lock), 0o600);
}

#[test]
fn a_folder_of_somebody_else_is_not_used() {
    if !superhue_testing::is_root() {
        return superhue_testing::skip("root", "cannot make a folder of another user");
    }
    let machine = Machine::new();
    let guard = machine.apply(&["enabled=never"]).unwrap();
    drop(guard.pending_for_test());
    let folder = machine.journal().folder;
    for theirs in [folder.as_path(), folder.parent().unwrap()] {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.parent().unwrap(), everybody).unwrap();
        let give = |user| std::os::unix::fs::chown(theirs, Some(user), None).unwrap();
        give(superhue_testing::NOBODY);
        let error = machine.journal().recover().unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        assert!(error.contains("nothing was restored"), "{error}");
        let error = machine.apply(&["enabled=always"]).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        give(0);
    }
    assert_eq!(machine.journal().recover().unwrap().restored.len(), 1);
    assert_eq!(mode(folder.parent().unwrap()), 0o755);
}
