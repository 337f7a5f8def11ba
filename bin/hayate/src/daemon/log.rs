//! What is logged, and where to: standard error, which an init system keeps.

use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Checks words like `info` or `info,dataplane=debug`.
///
/// The filter library takes any word for the name of a part of the program; a level that was
/// misspelt would silence everything.
pub(crate) fn check_log(words: &str) -> Result<(), String> {
    for word in words.split(',') {
        let level = word.rsplit('=').next().unwrap_or_default();
        if level.parse::<LevelFilter>().is_err() || level.is_empty() {
            return Err(format!(
                "{word:?} is not allowed: error, warn, info, debug, trace and off are, or \
                 PART=LEVEL, several with commas between"
            ));
        }
    }
    EnvFilter::try_new(words).map(drop).map_err(|error| error.to_string())
}

/// Starts logging.
pub(crate) fn start(words: &str) -> Result<(), String> {
    check_log(words)?;
    let filter = EnvFilter::try_new(words).map_err(|error| error.to_string())?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    log.try_init().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::check_log;

    #[test]
    fn levels_are_checked() {
        for good in ["info", "off", "warn,dataplane=debug", "hayate=trace"] {
            check_log(good).unwrap();
        }
        for bad in ["", "loud", "info,", "dataplane=", "dataplane=loud"] {
            assert!(check_log(bad).unwrap_err().contains("error, warn, info"), "{bad}");
        }
    }
}
