//! Flow rules that survive a restart: a file for each PF that has any, replaced as a whole.
//!
//! A guest changes its rules often, and there may be many, so they are not in the one file of what was
//! declared. A file that cannot be understood stops the daemon: starting without a guest's filter would be
//! worse than not starting.

use super::{StateError, replace};
use api::Name;
use channel::FlowBook;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The directory of the files.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    directory: PathBuf,
}

impl Books {
    pub(crate) fn new(state: &Path) -> Self {
        Self { directory: state.join("rules") }
    }

    fn file(pf: &Name) -> String {
        format!("{pf}.json")
    }

    /// Rules of a PF; none if there is no file.
    pub(crate) fn load(&self, pf: &Name) -> Result<FlowBook, StateError> {
        let path = self.directory.join(Self::file(pf));
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|source| StateError::Damaged { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FlowBook::default()),
            Err(source) => Err(StateError::Read { path, source }),
        }
    }

    /// Keeps rules of a PF; when this returns `Ok` they are on stable storage.
    pub(crate) fn save(&self, pf: &Name, book: &FlowBook) -> Result<(), StateError> {
        self.put(pf, book)
            .map_err(|source| StateError::Write { path: self.directory.clone(), source })
    }

    fn put(&self, pf: &Name, book: &FlowBook) -> io::Result<()> {
        if book.is_empty() {
            return match fs::remove_file(self.directory.join(Self::file(pf))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(()) => fs::File::open(&self.directory)?.sync_all(),
            };
        }
        fs::create_dir_all(&self.directory)?;
        replace(&self.directory, &Self::file(pf), &serde_json::to_vec(book)?)
    }

    /// Removes the files of PFs that there are not.
    pub(crate) fn tidy(&self, there: impl Fn(&str) -> bool) -> io::Result<()> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let pf = name.to_str().and_then(|name| name.strip_suffix(".json"));
            if !pf.is_some_and(&there) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::channel::FlowLimits;
    use api::rule::{FlowAction, FlowDirection, FlowPort, FlowRule};
    use channel::FlowChange;

    #[test]
    fn rules_are_kept_and_tidied() {
        let directory = tempfile::tempdir().unwrap();
        let books = Books::new(directory.path());
        let (one, two): (Name, Name) = ("one".parse().unwrap(), "two".parse().unwrap());
        assert!(books.load(&one).unwrap().is_empty());
        books.save(&one, &FlowBook::default()).unwrap();
        let rule = FlowRule::new(7, FlowPort::PF, FlowDirection::From, FlowAction::Drop);
        let change = FlowChange { add: [(7, rule)].into(), ..FlowChange::default() };
        let limits = FlowLimits { rules: 1, ..FlowLimits::default() };
        let book = FlowBook::default().apply(&change, Some("boot"), &limits).unwrap().book;
        books.save(&one, &book).unwrap();
        books.save(&two, &book).unwrap();
        assert_eq!(books.load(&one).unwrap(), book);
        books.tidy(|pf| pf == "one").unwrap();
        assert!(books.load(&two).unwrap().is_empty());
        books.save(&one, &FlowBook::default()).unwrap();
        assert_eq!(fs::read_dir(directory.path().join("rules")).unwrap().count(), 0);
    }

    #[test]
    fn damage_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let books = Books::new(directory.path());
        fs::create_dir(directory.path().join("rules")).unwrap();
        let file = directory.path().join("rules/one.json");
        let rule = r#"{"id":1,"on":"pf","direction":"to","action":"drop"}"#;
        for (text, part) in [
            (String::new(), "damaged"),
            (format!(r#"{{"rules":[{rule},{rule}],"defaults":[]}}"#), "twice"),
            (r#"{"rules":[],"defaults":[],"more":1}"#.to_owned(), "unknown field"),
        ] {
            fs::write(&file, text).unwrap();
            let error = books.load(&"one".parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("one.json"), "{error}");
        }
    }
}
