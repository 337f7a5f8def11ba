//! What is answered when something went wrong.

use std::fmt;
use std::io;

use serde_json::{Value, json};

/// Numbers of errors: below 100 those of the specification, from 100 on our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration is of a version that is not spoken.
    Version,
    /// A key of the configuration that cannot be honoured.
    Unsupported,
    /// The container is not there.
    NoContainer,
    /// Variables of the environment.
    Environment,
    /// Reading or writing.
    Io,
    /// What was read is not what it should be.
    Decode,
    /// The configuration is wrong.
    Config,
    /// It may work later.
    Later,
    /// No container can be added.
    Unavailable,
    /// The same, and those that were added may be cut off.
    Limited,
    /// The kernel refused something.
    Kernel,
    /// There is no such PF or VF.
    NoFunction,
    /// There is an attachment or an interface of that name.
    Exists,
    /// What CHECK looked at is not as it was made.
    Changed,
    /// The agent refused, or cannot be reached.
    Agent,
    /// What another plugin said.
    Other(u32),
}

impl Code {
    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Version => 1,
            Self::Unsupported => 2,
            Self::NoContainer => 3,
            Self::Environment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::Config => 7,
            Self::Later => 11,
            Self::Unavailable => 50,
            Self::Limited => 51,
            Self::Kernel => 100,
            Self::NoFunction => 101,
            Self::Exists => 102,
            Self::Changed => 103,
            Self::Agent => 104,
            Self::Other(number) => number,
        }
    }

    /// What it means in general.
    const fn message(self) -> &'static str {
        match self {
            Self::Version => "incompatible CNI version",
            Self::Unsupported => "unsupported field in network configuration",
            Self::NoContainer => "container unknown or does not exist",
            Self::Environment => "invalid environment variables",
            Self::Io => "I/O failure",
            Self::Decode => "failed to decode content",
            Self::Config => "invalid network configuration",
            Self::Later => "try again later",
            Self::Unavailable => "the plugin is not available",
            Self::Limited => "the plugin is not available, and containers may be cut off",
            Self::Kernel => "the kernel refused",
            Self::NoFunction => "no such function",
            Self::Exists => "already there",
            Self::Changed => "not as it was made",
            Self::Agent => "the agent refused",
            Self::Other(_) => "another plugin failed",
        }
    }
}

/// An error, as the specification has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its number.
    pub code: Code,
    /// What it means in general.
    pub message: String,
    /// What happened.
    pub details: String,
}

impl Error {
    /// An error of this code; `details` is a sentence a person can act on.
    pub fn new(code: Code, details: impl Into<String>) -> Self {
        Self { code, message: code.message().into(), details: details.into() }
    }

    /// Reading or writing `what` failed.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Code::Io, format!("{what}: {error}"))
    }

    /// `what` could not be understood.
    pub fn decode(what: impl fmt::Display, error: &serde_json::Error) -> Self {
        Self::new(Code::Decode, format!("{what}: {error}"))
    }

    /// The kernel refused `what`.
    pub fn kernel(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Code::Kernel, format!("{what}: {error}"))
    }

    /// The same with what was being done in front.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.details = format!("{what}: {}", self.details);
        self
    }

    /// What goes to standard output. `version` is that of the configuration, if it is one that is spoken.
    pub fn answer(&self, version: Option<&str>) -> Value {
        let newest = crate::VERSIONS[crate::VERSIONS.len() - 1];
        let version = version.filter(|version| crate::VERSIONS.contains(version));
        json!({
            "cniVersion": version.unwrap_or(newest),
            "code": self.code.number(),
            "msg": self.message,
            "details": self.details,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.details)
    }
}

impl std::error::Error for Error {}

/// Several errors as one: the first one's code, everybody's details.
pub(crate) fn all(errors: Vec<Error>) -> Result<(), Error> {
    let mut errors = errors.into_iter();
    let Some(mut first) = errors.next() else { return Ok(()) };
    for error in errors {
        first.details = format!("{}; {}", first.details, error.details);
    }
    Err(first)
}
