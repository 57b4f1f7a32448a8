//! Signals and job control: superhue stands between a command and its caller, and neither sees a difference.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, waitpid};

use crate::support::{self, ChildGuard, User, installed, lives, output, send, state, text, until};

/// A command under superhue, with pipes to its input and output.
struct PipedCommand {
    running: ChildGuard,
    input: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl PipedCommand {
    fn start(user: User, script: &str) -> Self {
        let arguments = ["run", "--quiet", "--", "sh", "-c", script];
        let mut command = with_default_signals(installed().join("superhue"));
        command.args(arguments).current_dir("/");
        user.run(&mut command);
        // A process group whose parent is in another one of the session: in an orphaned group, as that of a test run
        // started by a service manager, SIGTSTP stops no process.
        command.process_group(0);
        let mut running = ChildGuard::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let input = running.0.stdin.take();
        let said = BufReader::new(running.0.stdout.take().unwrap());
        Self {
            running,
            input,
            said,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        rest
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }
}

/// A program that finds no signal ignored. The parent of the tests may have ignored some (`nohup`, `make test &` in a
/// script); a shell cannot trap a signal that was ignored at its start, and no key of a terminal reaches its children.
fn with_default_signals(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    command
}

fn pid_of(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// Waits, with a deadline, for a state change of a child of ours.
fn change(running: &ChildGuard, options: WaitOptions) -> WaitStatus {
    until("the child changes", || {
        let options = options | WaitOptions::NOHANG;
        waitpid(Some(pid_of(running.pid())), options)
            .unwrap()
            .map(|(_, status)| status)
    })
}

#[test]
fn a_signal_sent_to_superhue_reaches_the_command_once() {
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("ALRM", Signal::ALARM),
        ("VTALRM", Signal::VTALARM),
        ("PROF", Signal::PROF),
        ("IO", Signal::IO),
        ("PWR", Signal::POWER),
        ("XCPU", Signal::XCPU),
        ("ABRT", Signal::ABORT),
        ("PIPE", Signal::PIPE),
        ("TRAP", Signal::TRAP),
        ("SYS", Signal::SYS),
    ] {
        // It counts the signals until its input ends it.
        let script = format!(
            "n=0; trap 'n=$((n+1)); echo got' {name}; echo ready; \
             while ! read word; do :; done; echo $n; exit 7"
        );
        let mut talk = PipedCommand::start(User::Same, &script);
        assert_eq!(talk.line(), "ready");
        talk.running.signal(signal);
        assert_eq!(talk.line(), "got", "{name}");
        talk.say("end");
        assert_eq!(talk.line(), "1", "{name}");
        assert_eq!(talk.running.wait().code(), Some(7), "{name}");
    }
}

/// Prints which of two signals arrive.
const TWO_SIGNALS: &str = "
import signal
names = {signal.SIGRTMIN + 3: 'real-time', signal.SIGALRM: 'alarm'}
signal.pthread_sigmask(signal.SIG_BLOCK, names)
print('ready', flush=True)
for _ in names:
    print(names[signal.sigtimedwait(names, 60).si_signo], flush=True)
";

#[test]
fn timers_and_real_time_signals_are_passed_on() {
    let Some(python) = support::python() else {
        return;
    };
    let superhue = installed().join("superhue");
    // The timer outlives the `exec`: without superhue it would end the program.
    let start = |seconds: u32| {
        let script = format!(
            "import os, signal, sys; signal.alarm({seconds}); os.execvp(sys.argv[1], sys.argv[1:])"
        );
        let mut command = with_default_signals(python);
        command.args(["-c", &script]).arg(&superhue);
        command.args(["run", "--quiet", "--", python, "-c", TWO_SIGNALS]);
        let mut running = ChildGuard::start(command.stdout(Stdio::piped()));
        let mut said = BufReader::new(running.0.stdout.take().unwrap()).lines();
        let first = said.next().map(Result::unwrap);
        (running, said, first)
    };
    let (mut running, mut said, mut first) = start(5);
    if first.is_none() {
        // On a busy machine the timer may run out before the program waits for its signal, and end it.
        (running, said, first) = start(40);
    }
    assert_eq!(first.as_deref(), Some("ready"));
    let mut line = || said.next().unwrap().unwrap();
    assert_eq!(line(), "alarm");
    let script = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGRTMIN + 3)";
    let mut sender = Command::new(python);
    sender.args(["-c", script, &running.pid().to_string()]);
    output(&mut sender);
    assert_eq!(line(), "real-time");
    assert_eq!(running.wait().code(), Some(0));
}

/// Prints the value that comes with a signal.
const VALUE: &str = "
import ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print('ready', flush=True)
waited = (ctypes.c_ulong * 16)(1 << signal.SIGUSR1 - 1)
info = (ctypes.c_ulong * 16)()
ctypes.CDLL(None).sigwaitinfo(waited, info)
print(hex(info[3]), flush=True)
";

#[test]
fn the_value_of_a_queued_signal_is_passed_on_whole() {
    let Some(python) = support::python() else {
        return;
    };
    let mut command = Command::new(installed().join("superhue"));
    command.args(["run", "--quiet", "--", python, "-c", VALUE]);
    let mut running = ChildGuard::start(command.stdout(Stdio::piped()));
    let mut said = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let mut line = || said.next().unwrap().unwrap();
    assert_eq!(line(), "ready");
    let script = "import ctypes, signal, sys; \
                  ctypes.CDLL(None).sigqueue(int(sys.argv[1]), signal.SIGUSR1, ctypes.c_void_p(0x123456789a))";
    let mut sender = Command::new(python);
    sender.args(["-c", script, &running.pid().to_string()]);
    output(&mut sender);
    assert_eq!(line(), "0x123456789a");
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn a_signal_that_ends_the_command_ends_superhue_alike() {
    for user in [User::Same, User::Ordinary] {
        let mut talk = PipedCommand::start(user, "echo ready; exec sleep 60");
        assert_eq!(talk.line(), "ready");
        talk.running.signal(Signal::TERM);
        let status = talk.running.wait();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(15)
        );
    }
}

/// A command that reads a word, and its number.
fn reader() -> (PipedCommand, u32) {
    let script = "echo $$; read word; echo went on; exit 4";
    let mut talk = PipedCommand::start(User::Same, script);
    let command = talk.line().parse().unwrap();
    (talk, command)
}

/// Stops the command by its number, and waits until superhue has stopped.
fn stop(talk: &PipedCommand, command: u32, signal: Signal) {
    send(command, signal);
    let status = change(&talk.running, WaitOptions::UNTRACED);
    assert!(status.stopped(), "{status:?}");
}

/// Waits until superhue and the command continue.
fn both_go_on(talk: &PipedCommand, command: u32) {
    let status = change(&talk.running, WaitOptions::CONTINUED);
    assert!(status.continued(), "{status:?}");
    until("the command goes on", || {
        (state(command) != Some('T')).then_some(())
    });
}

fn reads_to_its_end(mut talk: PipedCommand) {
    talk.say("go");
    assert_eq!(talk.line(), "went on");
    assert_eq!(talk.running.wait().code(), Some(4));
}

#[test]
fn when_the_command_stops_superhue_stops_and_both_go_on() {
    for signal in [Signal::STOP, Signal::TSTP] {
        let (talk, command) = reader();
        for _ in 0..2 {
            stop(&talk, command, signal);
            until("the command is stopped", || {
                (state(command) == Some('T')).then_some(())
            });
            talk.running.signal(Signal::CONT);
            both_go_on(&talk, command);
        }
        reads_to_its_end(talk);
    }
}

#[test]
fn a_command_that_is_continued_by_its_number_takes_superhue_along() {
    let (talk, command) = reader();
    for _ in 0..2 {
        stop(&talk, command, Signal::STOP);
        send(command, Signal::CONT);
        both_go_on(&talk, command);
    }
    reads_to_its_end(talk);
}

#[test]
fn killing_superhue_leaves_the_command_alive_and_well() {
    for user in [User::Same, User::Ordinary] {
        let script = "echo $$; while read word; do echo \"heard $word\"; done; echo done";
        let mut talk = PipedCommand::start(user, script);
        let command: u32 = talk.line().parse().unwrap();
        talk.say("one");
        assert_eq!(talk.line(), "heard one");
        talk.running.signal(Signal::KILL);
        talk.running.wait();
        assert!(lives(command));
        talk.say("two");
        assert_eq!(talk.line(), "heard two");
        talk.input = None;
        assert_eq!(talk.rest(), "done\n");
        until("the command has ended", || (!lives(command)).then_some(()));
    }
}

/// Plays a user at a terminal; prints `ok` and the contents of the screen.
const TERMINAL: &str = r#"
import os, pty, re, select, signal, sys, termios, time
pid, terminal = pty.fork()
if pid == 0:
    # Keys that send signals discard what was written and not read yet: that may be what is waited for.
    settings = termios.tcgetattr(0)
    settings[3] |= termios.NOFLSH
    termios.tcsetattr(0, termios.TCSANOW, settings)
    os.environ['PS1'] = 'prompt> '
    os.environ.pop('ENV', None)
    os.execvp('sh', ['sh', '-i'])
screen = ''
def wait_for(pattern, key=None):
    # A key is pressed again and again: right after `fg` the terminal is still the shell's.
    global screen
    deadline = time.time() + 60
    pressed = 0
    while not (found := re.search(pattern, screen)):
        if key and time.time() > pressed + 1:
            pressed = time.time()
            os.write(terminal, key.encode())
        if time.time() > deadline:
            print('waited in vain for', pattern, 'on:', repr(screen))
            os.kill(pid, signal.SIGKILL)
            sys.exit(1)
        if select.select([terminal], [], [], 0.1)[0]:
            screen += os.read(terminal, 4096).decode(errors='replace')
    screen = screen[found.end():]
    return found
def keys(text):
    os.write(terminal, text.encode())
run = sys.argv[1] + ' run --quiet -- '
wait_for('prompt> ')
# Interrupted by a key, once, with the status of a command ended by SIGINT.
keys(run + 'sh -c \'trap \"echo int; exit 6\" INT; echo rea\"\"dy; while :; do sleep 0.1; done\'\n')
wait_for('\nready'); keys('\x03'); wait_for('int\r\n'); wait_for('prompt> ')
keys('echo status=$?\n'); wait_for('\nstatus=6')
wait_for('prompt> ')
keys(run + 'sh -c \'echo rea\"\"dy; exec sleep 60\'\n')
wait_for('\nready'); keys('\x03'); wait_for('prompt> ')
keys('echo status=$?\n'); wait_for('\nstatus=130')
wait_for('prompt> ')
# Stopped by a key and continued in the foreground, twice; then it reads from the terminal.
keys(run + 'sh -c \'echo rea\"\"dy; read word; echo heard $word\'\n')
wait_for('\nready')
for _ in range(2):
    wait_for('[Ss]topped', '\x1a'); wait_for('prompt> ')
    keys('fg\n'); wait_for('superhue')
keys('hello\n'); wait_for('heard hello'); wait_for('prompt> ')
# In the background it may not read from the terminal, and stops.
keys(run + 'sh -c \'read word; echo heard $word\' &\n'); wait_for('prompt> ')
keys('until grep -q "State:.T" /proc/$!/status; do sleep 0.05; done; jobs\n'); wait_for('[Ss]topped'); wait_for('prompt> ')
keys('fg\n'); wait_for('superhue'); keys('again\n'); wait_for('heard again'); wait_for('prompt> ')
keys('exit\n')
print('ok')
"#;

/// Closes a terminal whose session the command leads; prints the signal that ended the command.
const HANG_UP: &str = r#"
import os, pty, signal, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
said = b''
while b'ready' not in said:
    said += os.read(terminal, 4096)
os.close(terminal)
deadline = time.time() + 30
while time.time() < deadline:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        sys.exit(print(signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status))
    time.sleep(0.01)
os.kill(pid, signal.SIGKILL)
print('still there')
"#;

/// As in a window that runs one command only. The kernel sends the signal only to the leader of the session.
#[test]
fn the_end_of_the_terminal_ends_the_command_as_it_does_without() {
    let Some(python) = support::python() else {
        return;
    };
    let superhue = installed().join("superhue").into_os_string();
    let run: Vec<_> = [superhue, "run".into(), "--quiet".into(), "--".into()].into();
    for before in [Vec::new(), run] {
        let mut command = with_default_signals(python);
        command.args(["-c", HANG_UP]).args(before);
        command.args(["sh", "-c", "echo ready; exec sleep 60"]);
        let said = output(&mut command);
        assert_eq!(text(&said.stdout), "SIGHUP\n", "{}", text(&said.stderr));
    }
}

#[test]
fn keys_of_the_terminal_do_what_they_do_without() {
    let Some(python) = support::python() else {
        return;
    };
    let mut command = with_default_signals(python);
    command
        .args(["-c", TERMINAL])
        .arg(installed().join("superhue"))
        .env("TERM", "dumb");
    let said = output(&mut command);
    assert_eq!(text(&said.stdout), "ok\n", "{}", text(&said.stderr));
}
