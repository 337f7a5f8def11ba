//! What the demo shows: one line per step with its time, then tables.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Width of the first column.
const NAME: usize = 24;

/// Where the demo writes, and since when it runs.
#[derive(Clone, Copy)]
pub(crate) struct Screen {
    start: Instant,
    terminal: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), terminal: std::io::stdout().is_terminal() }
    }

    /// Prints one line.
    pub(crate) fn line(self, text: &str) {
        // Standard output may be closed; the demo then goes on to clean up.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    pub(crate) fn title(self, text: &str) {
        self.line(&format!("\n{}\n", self.paint("1", text)));
    }

    pub(crate) fn bad(self, text: &str) {
        self.line(&self.paint("31", text));
    }

    pub(crate) fn good(self, text: &str) {
        self.line(&self.paint("32", text));
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }

    /// Runs one step, showing its name while it lasts and what it returns when it is done.
    pub(crate) fn step<T>(
        self,
        name: &str,
        run: impl FnOnce() -> e2e::Result<(T, String)>,
    ) -> e2e::Result<T> {
        let ticker = Ticker::start(self, name);
        let result = run();
        drop(ticker);
        let at = self.start.elapsed().as_secs_f64();
        match result {
            Ok((value, text)) => {
                self.line(&format!("  {at:5.1} s  {name:NAME$} {text}"));
                Ok(value)
            }
            Err(e) => {
                self.bad(&format!("  {at:5.1} s  {name:NAME$} failed"));
                Err(e)
            }
        }
    }

    /// A row of a table: a name and values below each other.
    pub(crate) fn row(self, name: &str, values: &[String]) {
        let values: Vec<String> = values.iter().map(|v| format!("{v:<30}")).collect();
        self.line(format!("  {name:NAME$} {}", values.join(" ")).trim_end());
    }

    /// A table with a heading and columns as wide as they need be; the first is left-aligned.
    pub(crate) fn table(self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        for (i, row) in rows.iter().enumerate() {
            let mut line = String::from(" ");
            for (c, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let cell =
                    if c == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
                line.push_str(&cell);
            }
            self.line(&if i == 0 { self.paint("1", &line) } else { line });
        }
    }
}

/// Shows the step that is going on and its time, on a terminal.
struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(screen: Screen, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        if !screen.terminal {
            return Self { stop, thread: None };
        }
        let (flag, name, began) = (Arc::clone(&stop), name.to_string(), Instant::now());
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                let at = screen.start.elapsed().as_secs_f64();
                let took = began.elapsed().as_secs_f64();
                let mut out = std::io::stdout();
                let _ = write!(
                    out,
                    "\r\x1b[2K  {at:5.1} s  {name:NAME$} \x1b[2m... {took:.0} s\x1b[0m"
                );
                let _ = out.flush();
                std::thread::park_timeout(Duration::from_millis(200));
            }
            let _ = write!(std::io::stdout(), "\r\x1b[2K");
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            t.thread().unpark();
            let _ = t.join();
        }
    }
}
