//! Refusals, as a client sees them.

use serde::{Deserialize, Serialize};

/// What kind of refusal it is. Scripts decide by this, people read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request is wrong: a name, a value or a combination of values. HTTP status 400.
    Invalid,
    /// There is no such thing. HTTP status 404.
    NotFound,
    /// The path exists, the method does not. HTTP status 405.
    NoSuchMethod,
    /// Something of that name exists and is different. HTTP status 409.
    Exists,
    /// Something else needs it. HTTP status 409.
    InUse,
    /// It was declared in the configuration file and can only be changed there. HTTP status 409.
    Static,
    /// The request is too large. HTTP status 413.
    TooLarge,
    /// The machine refused: a device, a file or a permission. HTTP status 500.
    Host,
}

impl ErrorCode {
    /// The HTTP status it travels with.
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::NotFound => 404,
            Self::NoSuchMethod => 405,
            Self::Exists | Self::InUse | Self::Static => 409,
            Self::TooLarge => 413,
            Self::Host => 500,
        }
    }
}

/// One refusal.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, thiserror::Error,
)]
#[error("{message}")]
pub struct Error {
    /// What kind it is.
    pub code: ErrorCode,
    /// One sentence a person can act on.
    pub message: String,
    /// What to do about it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Error {
    /// A refusal without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Body of every answer that is a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// The refusal.
    pub error: Error,
}
