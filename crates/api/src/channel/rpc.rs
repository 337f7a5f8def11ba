//! The envelope: JSON-RPC 2.0, without notifications and batches.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Method, Refusal};

/// `"2.0"`, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// The one there is.
    #[default]
    #[serde(rename = "2.0")]
    V2,
}

/// A request as the daemon reads it: which method it is decides how the rest is read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request<'a> {
    /// Always there.
    pub jsonrpc: Version,
    /// The agent's number; the answer has it.
    pub id: u64,
    /// Name of the method.
    pub method: &'a str,
    /// What it needs.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
}

impl<'a> Request<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// Its parameters.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn params<M: Method>(&self) -> Result<M, serde_json::Error> {
        serde_json::from_str(self.params.map_or("{}", RawValue::get))
    }

    /// A line with this request, and its newline.
    ///
    /// # Errors
    /// None for the methods there are.
    pub fn line<M: Method>(id: u64, params: &M) -> Result<Vec<u8>, serde_json::Error> {
        #[derive(Serialize)]
        struct Line<'a, M> {
            jsonrpc: Version,
            id: u64,
            method: &'static str,
            params: &'a M,
        }
        let mut line =
            serde_json::to_vec(&Line { jsonrpc: Version::V2, id, method: M::NAME, params })?;
        line.push(b'\n');
        Ok(line)
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer<R> {
    /// Always there.
    pub jsonrpc: Version,
    /// Number of the request; none if it could not be read.
    pub id: Option<u64>,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome<R>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome<R> {
    /// It was done.
    Result(R),
    /// It was refused, and nothing was done of it.
    Error(Failed),
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// [`Refusal::code`].
    pub code: i32,
    /// What is wrong, for people.
    pub message: String,
    /// Which refusal it is.
    pub data: Refusal,
}

impl Failed {
    /// A refusal with its message.
    pub fn new(reason: Refusal, message: impl Into<String>) -> Self {
        Self { code: reason.code(), message: message.into(), data: reason }
    }
}

impl<R: Serialize> Answer<R> {
    /// A line with this answer, and its newline.
    ///
    /// # Errors
    /// None for the results there are.
    pub fn line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}
