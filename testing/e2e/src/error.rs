//! The one error of this crate: a text for a person.

use std::fmt;

/// What went wrong, in words, with log tails where they help.
pub struct Error(String);

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(e: E) -> Self {
        let mut text = e.to_string();
        let mut source = e.source();
        while let Some(s) = source {
            text = format!("{text}: {s}");
            source = s.source();
        }
        Self(text)
    }
}

/// Adds what was being done to an error.
pub trait Context<T> {
    /// Puts `what: ` in front of the error's text.
    ///
    /// # Errors
    /// The same error with the longer text.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error(format!("{}: {}", what(), e.into().0)))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.ok_or_else(|| Error(what()))
    }
}

/// Returns an [`Error`] of the formatted text.
#[macro_export]
macro_rules! bail {
    ($($t:tt)*) => { return ::std::result::Result::Err($crate::Error::new(format!($($t)*))) };
}

/// Returns an [`Error`] of the formatted text unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($cond:expr, $($t:tt)*) => { if $cond {} else { $crate::bail!($($t)*); } };
}
