//! Ctrl-C and SIGTERM: the first asks the runner to stop at its next safe point, the second ends the process at once. Before
//! and after the runner works (a model is loaded, a report is written) there are no such points, so there the first one ends.
//!
//! Nothing is lost either way (the journal survives a kill); the first way only ends with a clean flush and a status.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use kvgauge::serving::launch;
use kvgauge::targets::CancelFlag;

use crate::exit_code::Exit;
use crate::output::note;

/// The one watch of the process: a command may measure more than once, and a second watch would not know that the first one works.
static WATCH: Mutex<Option<Interrupt>> = Mutex::new(None);

/// Watches for signals as long as the process lives.
#[derive(Clone)]
pub(crate) struct Interrupt {
    /// For the runner.
    pub(crate) cancel: Arc<CancelFlag>,
    received: Arc<AtomicU8>,
    /// Whether the runner works and looks at `cancel`.
    has_steps: Arc<AtomicBool>,
}

const NOTHING: u8 = 0;
const CTRL_C: u8 = 1;
const TERMINATE: u8 = 2;

impl Interrupt {
    /// The process's watch, which is started when it is first asked for.
    pub(crate) fn watch() -> std::io::Result<Watched> {
        let mut watch = WATCH.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let interrupt = match &*watch {
            Some(interrupt) => interrupt.clone(),
            None => watch.insert(Self::start()?).clone(),
        };
        Ok(Watched(interrupt))
    }

    /// Starts to watch, on a thread of its own: the engine may keep all others busy for seconds.
    fn start() -> std::io::Result<Self> {
        let cancel = Arc::new(CancelFlag::default());
        let received = Arc::new(AtomicU8::new(NOTHING));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let has_steps = Arc::new(AtomicBool::new(false));
        let (flag, seen, stepping) = (Arc::clone(&cancel), Arc::clone(&received), Arc::clone(&has_steps));
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            runtime.block_on(async move {
                let Ok(mut signals) = Signals::listen() else { return };
                // Whoever waits may have gone; then nobody needs to know.
                let _ = ready.send(());
                loop {
                    let signal = signals.next().await;
                    if seen.swap(signal, Ordering::SeqCst) != NOTHING || !stepping.load(Ordering::SeqCst) {
                        end_now(signal);
                    }
                    flag.cancel();
                    note("stopping after the current step; a second signal ends at once, nothing recorded is lost");
                }
            });
        })?;
        // A signal that comes before the handlers stand would end the process without its exit code. Where there are none
        // the thread has ended, and so has the waiting.
        let _ = is_ready.recv();
        Ok(Self { cancel, received, has_steps })
    }

    /// From here on the first signal only asks; until the [`Watched`] is dropped.
    pub(crate) fn ask_first(&self) {
        self.has_steps.store(true, Ordering::SeqCst);
    }

    /// How the process has to end, when a signal came.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self.received.load(Ordering::SeqCst) {
            NOTHING => None,
            TERMINATE => Some(Exit::Terminated),
            _ => Some(Exit::Interrupted),
        }
    }
}

/// The watch in the hands of one who works.
pub(crate) struct Watched(Interrupt);

impl std::ops::Deref for Watched {
    type Target = Interrupt;

    fn deref(&self) -> &Interrupt {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.has_steps.store(false, Ordering::SeqCst);
    }
}

#[expect(clippy::exit, reason = "a second signal must end the process while other threads compute")]
fn end_now(signal: u8) -> ! {
    launch::kill_all();
    let exit = if signal == TERMINATE { Exit::Terminated } else { Exit::Interrupted };
    std::process::exit(i32::from(exit.code()))
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => CTRL_C,
            _ = self.terminate.recv() => TERMINATE,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> u8 {
        match tokio::signal::ctrl_c().await {
            Ok(()) => CTRL_C,
            Err(_) => std::future::pending().await,
        }
    }
}
