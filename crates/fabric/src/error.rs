//! What can go wrong, in the provider's words.

#![expect(unsafe_code)]
// UNSAFETY: asks the library, in C, what its numbers mean.

use std::ffi::{CStr, c_char, c_int};

use crate::ffi;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library was not there when this program was built.
    #[error(
        "built without libfabric: install it (Debian: apt-get install libfabric-dev pkg-config) and \
         build again"
    )]
    Missing,
    /// libfabric or its provider refused, or an operation failed.
    #[error("{what}: {text} ({code})")]
    Provider {
        /// The call, or the kind of operation.
        what: &'static str,
        /// What the library says.
        text: String,
        /// Its number: of errno, or from 256 on of `rdma/fi_errno.h`.
        code: i32,
    },
    /// The provider wants what is not done here.
    #[error("the provider {0}")]
    Unsuitable(&'static str),
    /// The connection ended before the operation did.
    #[error("the connection has ended")]
    Ended,
    /// The arguments cannot be.
    #[error("{0}")]
    Argument(&'static str),
    /// The kernel refused.
    #[error("{what}: {text}")]
    Kernel {
        /// The call.
        what: &'static str,
        /// The kernel's reason.
        text: String,
    },
}

impl Error {
    /// Of a number of the library, of either sign.
    pub(crate) fn of(what: &'static str, code: c_int) -> Error {
        let code = code.wrapping_abs();
        Error::Provider { what, text: text(code), code }
    }

    pub(crate) fn kernel(what: &'static str, error: rustix::io::Errno) -> Error {
        Error::Kernel { what, text: error.to_string() }
    }

    /// What a call returned, if it is not negative.
    pub(crate) fn check(what: &'static str, result: c_int) -> Result<c_int, Error> {
        match result {
            _ if !cfg!(has_libfabric) => Err(Error::Missing),
            0.. => Ok(result),
            code => Err(Error::of(what, code)),
        }
    }

    /// The number, of what the provider said.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        if let Error::Provider { code, .. } = self { Some(*code) } else { None }
    }
}

/// What the library says of a number.
fn text(code: c_int) -> String {
    let mut buffer: [c_char; 128] = [0; 128];
    // SAFETY: at most as many bytes as there are are written, the last of them zero.
    unsafe { ffi::shim_strerror(code, buffer.as_mut_ptr(), buffer.len()) };
    string(&buffer)
}

/// The text in a buffer, up to its end or a zero.
pub(crate) fn string(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
