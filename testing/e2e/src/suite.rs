//! The main program of the tests: named cases that share an expensive fixture (two booted guests),
//! one after another, each with a line of what it measured.
//!
//! It understands what `cargo test` passes on: filters, `--exact`, `--skip`, `--list`; the other
//! options of the standard runner are accepted and mean nothing here.

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use crate::process::{catch_signals, interrupted};
use crate::{Error, Result, assets};

/// One test: its name and what it does with the fixture. It returns what it saw, in a few words.
pub struct Case<F> {
    name: String,
    run: CaseFn<F>,
}

type CaseFn<F> = Box<dyn Fn(&mut F) -> Result<String>>;

/// A test of this name.
pub fn case<F>(
    name: impl Into<String>,
    run: impl Fn(&mut F) -> Result<String> + 'static,
) -> Case<F> {
    Case { name: name.into(), run: Box::new(run) }
}

/// A run of some groups of cases.
pub struct Suite {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    passed: usize,
    failed: Vec<(String, Error)>,
    left_out: usize,
    start: Instant,
}

/// How often making a fixture may fail before the group is given up.
const FIXTURE_FAILURES: usize = 2;

/// Runs a test program.
pub fn main(groups: impl FnOnce(&mut Suite)) -> ExitCode {
    let mut suite = Suite {
        filters: Vec::new(),
        skip: Vec::new(),
        exact: false,
        list: false,
        passed: 0,
        failed: Vec::new(),
        left_out: 0,
        start: Instant::now(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        match a.as_str() {
            "--exact" => suite.exact = true,
            "--list" => suite.list = true,
            "--skip" => suite.skip.extend(args.next()),
            "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
            a if a.starts_with('-') => {}
            _ => suite.filters.push(a),
        }
    }
    if suite.list {
        groups(&mut suite);
        return ExitCode::SUCCESS;
    }
    catch_signals();
    let _lock = assets::only_one();
    // Fetched and built before the first case, so that it counts as nobody's time.
    if let Err(e) = assets::get() {
        say(format_args!("{e}\n"));
        return ExitCode::from(101);
    }
    groups(&mut suite);
    suite.report()
}

fn say(text: std::fmt::Arguments<'_>) {
    // Standard output may be closed (a pipe to head): nothing to be done about it.
    let mut out = std::io::stdout().lock();
    let _ = out.write_fmt(text);
    let _ = out.flush();
}

impl Suite {
    fn wants(&self, name: &str) -> bool {
        let matches = |f: &String| if self.exact { name == f } else { name.contains(f.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skip.iter().any(matches)
    }

    /// Runs those cases of a group that were asked for. The fixture is made when the first of them
    /// runs, and made anew after a failure, so that one failure does not become many. `finish` is
    /// a case too (`GROUP::end`), which runs when any other did.
    pub fn group<F>(
        &mut self,
        group: &str,
        setup: impl Fn() -> Result<F>,
        cases: Vec<Case<F>>,
        finish: impl Fn(F) -> Result<String>,
    ) {
        let named = |c: &str| format!("{group}::{c}");
        if self.list {
            for c in cases.iter().filter(|c| self.wants(&named(&c.name))) {
                say(format_args!("{}: test\n", named(&c.name)));
            }
            return;
        }
        let mut fixture = None;
        let mut failures = 0;
        for c in cases {
            let name = named(&c.name);
            if !self.wants(&name) {
                self.left_out += 1;
                continue;
            }
            say(format_args!("test {name} ... "));
            let start = Instant::now();
            let result = guarded(|| {
                if fixture.is_none() {
                    if failures == FIXTURE_FAILURES {
                        return Err(Error::new("not run: its fixture could not be made"));
                    }
                    failures += 1;
                    fixture = Some(setup()?);
                    failures -= 1;
                }
                match &mut fixture {
                    Some(f) => (c.run)(f),
                    None => Err(Error::new("no fixture")),
                }
            });
            if result.is_err() {
                fixture = None;
            }
            self.note(name, start, result);
        }
        if let Some(f) = fixture {
            let name = named("end");
            say(format_args!("test {name} ... "));
            let start = Instant::now();
            let result = guarded(|| finish(f));
            self.note(name, start, result);
        }
    }

    fn note(&mut self, name: String, start: Instant, result: Result<String>) {
        let seconds = start.elapsed().as_secs_f64();
        let terminal = std::io::stdout().is_terminal();
        let (green, red, plain) =
            if terminal { ("\x1b[32m", "\x1b[31m", "\x1b[0m") } else { ("", "", "") };
        match result {
            Ok(text) => {
                say(format_args!("{green}ok{plain} ({seconds:.1} s) {text}\n"));
                self.passed += 1;
            }
            Err(e) => {
                say(format_args!("{red}FAILED{plain} ({seconds:.1} s)\n{e}\n"));
                self.failed.push((name, e));
            }
        }
    }

    fn report(self) -> ExitCode {
        if !self.failed.is_empty() {
            say(format_args!("\nfailures:\n"));
            for (name, e) in &self.failed {
                let first: String = e.to_string().lines().take(3).collect::<Vec<_>>().join(" / ");
                say(format_args!("    {name}: {first}\n"));
            }
        }
        say(format_args!(
            "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; \
             finished in {:.2}s\n\n",
            if self.failed.is_empty() { "ok" } else { "FAILED" },
            self.passed,
            self.failed.len(),
            self.left_out,
            self.start.elapsed().as_secs_f64()
        ));
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
    }
}

/// Runs something that may panic; also refuses to begin after Ctrl-C.
fn guarded(run: impl FnOnce() -> Result<String>) -> Result<String> {
    if interrupted() {
        return Err(Error::new("interrupted"));
    }
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::new(format!("panicked: {}", text.unwrap_or("(no text)"))))
    })
}
