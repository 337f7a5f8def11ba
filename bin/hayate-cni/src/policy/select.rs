//! Do labels match a selector?

use super::object::{Labels, Selector};

/// A selector that was checked.
#[derive(Debug)]
pub(super) struct Checked<'a> {
    selector: &'a Selector,
    tests: Vec<Test<'a>>,
}

#[derive(Debug)]
enum Test<'a> {
    In(&'a str, &'a [String]),
    NotIn(&'a str, &'a [String]),
    Exists(&'a str),
    Absent(&'a str),
}

impl<'a> Checked<'a> {
    pub(super) fn new(selector: &'a Selector) -> Result<Self, String> {
        let tests = selector.match_expressions.iter().map(|one| {
            let (key, values) = (one.key.as_str(), one.values.as_slice());
            match (one.operator.as_str(), values.is_empty()) {
                ("In", false) => Ok(Test::In(key, values)),
                ("NotIn", false) => Ok(Test::NotIn(key, values)),
                ("Exists", true) => Ok(Test::Exists(key)),
                ("DoesNotExist", true) => Ok(Test::Absent(key)),
                ("In" | "NotIn", true) => Err(format!("{key}: {} needs values", one.operator)),
                ("Exists" | "DoesNotExist", false) => {
                    Err(format!("{key}: {} takes no values", one.operator))
                }
                (other, _) => Err(format!("{key}: there is no operator {other:?}")),
            }
        });
        let tests: Result<Vec<Test<'a>>, String> = tests.collect();
        Ok(Self { selector, tests: tests? })
    }

    pub(super) fn matches(&self, labels: &Labels) -> bool {
        let same = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.selector.match_labels.iter().all(same)
            && self.tests.iter().all(|test| match test {
                Test::In(key, values) => {
                    labels.get(*key).is_some_and(|value| values.contains(value))
                }
                Test::NotIn(key, values) => {
                    labels.get(*key).is_none_or(|value| !values.contains(value))
                }
                Test::Exists(key) => labels.contains_key(*key),
                Test::Absent(key) => !labels.contains_key(*key),
            })
    }
}
