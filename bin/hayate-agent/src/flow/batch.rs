//! Rules that are set together: read from words or JSON, numbered, and cut into parts that fit a question.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use api::Mac;
use api::channel::SetFlows;
use api::rule::{FlowDefault, FlowLine, FlowPort, FlowRule};
use serde::Deserialize;

/// So many bytes of JSON go into one question.
const PART: usize = 24 << 10;

/// Rules and defaults.
#[derive(Debug, Default)]
pub(super) struct Batch {
    rules: Vec<(FlowRule, bool)>,
    defaults: Vec<FlowDefault>,
    clear: BTreeSet<FlowPort>,
}

/// A file of JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    #[serde(default)]
    rules: Vec<FlowRule>,
    #[serde(default)]
    defaults: Vec<FlowDefault>,
}

impl Batch {
    /// Reads a file: JSON with `rules` and `defaults`, a list of rules, or lines of words.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let json = match text.trim_start().as_bytes().first() {
            Some(b'{') => serde_json::from_str(text).map(Some),
            Some(b'[') => {
                serde_json::from_str(text).map(|rules| Some(Json { rules, defaults: Vec::new() }))
            }
            _ => Ok(None),
        };
        let Some(Json { rules, defaults }) = json.map_err(|error| error.to_string())? else {
            return Self::lines(text);
        };
        for rule in &rules {
            rule.check().map_err(|why| format!("rule {}: {why}", rule.id))?;
        }
        let rules = rules.into_iter().map(|rule| (rule, true)).collect();
        Ok(Self { rules, defaults, clear: BTreeSet::new() })
    }

    fn lines(text: &str) -> Result<Self, String> {
        let mut batch = Self::default();
        let several = text.trim().contains('\n');
        for (place, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            match line.parse() {
                Ok(FlowLine::Rule { rule, numbered }) => batch.rules.push((*rule, numbered)),
                Ok(FlowLine::Default(default)) => batch.defaults.push(default),
                Err(why) if several => return Err(format!("line {place}: {why}")),
                Err(why) => return Err(why.to_string()),
            }
        }
        Ok(batch)
    }

    /// What is named in it, and these, have nothing else afterwards.
    pub(super) fn replaces(&mut self, on: &[FlowPort]) {
        self.clear.extend(on);
        self.clear.extend(self.rules.iter().map(|(rule, _)| rule.on));
        self.clear.extend(self.defaults.iter().map(|default| default.on));
    }

    /// Whether all rules say their numbers.
    pub(super) fn is_numbered(&self) -> bool {
        self.rules.iter().all(|(_, numbered)| *numbered)
    }

    /// Numbers of its rules.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.rules.iter().map(|(rule, _)| rule.id).collect()
    }

    /// Gives those that do not say one numbers above all others. Returns all.
    pub(super) fn number(&mut self, taken: impl Iterator<Item = u64>) -> Vec<u64> {
        let own = self.rules.iter().filter(|(_, numbered)| *numbered).map(|(rule, _)| rule.id);
        let mut last = taken.chain(own).max().unwrap_or_default();
        for (rule, _) in self.rules.iter_mut().filter(|(_, numbered)| !*numbered) {
            last = last.wrapping_add(1);
            rule.id = last;
        }
        self.ids()
    }

    pub(super) fn set(&self, pf: Mac) -> SetFlows {
        SetFlows {
            clear: self.clear.iter().copied().collect(),
            add: self.rules.iter().map(|(rule, _)| rule.clone()).collect(),
            defaults: self.defaults.clone(),
            ..SetFlows::new(pf)
        }
    }
}

/// Cut into parts, of which there is always one.
pub(super) fn parts(set: &SetFlows) -> Vec<SetFlows> {
    let mut parts = vec![SetFlows::new(set.pf)];
    let mut room = PART;
    let mut put = |size: usize, put: &dyn Fn(&mut SetFlows)| {
        if size > room {
            parts.push(SetFlows::new(set.pf));
            room = PART;
        }
        room = room.saturating_sub(size);
        if let Some(part) = parts.last_mut() {
            put(part);
        }
    };
    let size = |one: &dyn erased::Json| one.length() + 1;
    for id in &set.del {
        put(size(id), &|part| part.del.push(*id));
    }
    for on in &set.clear {
        put(size(on), &|part| part.clear.push(*on));
    }
    for rule in &set.add {
        put(size(rule), &|part| part.add.push(rule.clone()));
    }
    for default in &set.defaults {
        put(size(default), &|part| part.defaults.push(*default));
    }
    parts
}

/// A number that nobody else uses for his change at this moment.
pub(super) fn number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(std::process::id()) << 32 ^ u64::from(now.subsec_nanos()) ^ now.as_secs() << 40
}

/// How long something is in JSON.
mod erased {
    pub(super) trait Json {
        fn length(&self) -> usize;
    }

    impl<T: serde::Serialize> Json for T {
        fn length(&self) -> usize {
            serde_json::to_vec(self).map_or(usize::MAX, |text| text.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PF: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn words_and_json_are_read() {
        let text = "# who may come in\n\nvf0 to proto tcp dst-port 80 accept # web\n\
                    vf0 to id 9 drop\ndefault vf1 from drop\n";
        let mut batch = Batch::read(text).unwrap();
        assert!(!batch.is_numbered());
        assert_eq!(batch.number([3, 12].into_iter()), [13, 9]);
        assert_eq!(batch.number([3, 20].into_iter()), [21, 9]);
        batch.replaces(&["pf".parse().unwrap()]);
        let set = batch.set(PF);
        let clear: Vec<String> = set.clear.iter().map(ToString::to_string).collect();
        assert_eq!((set.add.len(), set.defaults.len()), (2, 1));
        assert_eq!(clear, ["pf", "vf0", "vf1"]);
        let json = serde_json::json!({"rules": set.add, "defaults": set.defaults}).to_string();
        let same = Batch::read(&json).unwrap().set(PF);
        assert_eq!((&same.add, &same.defaults), (&set.add, &set.defaults));
        let list = serde_json::to_string(&set.add).unwrap();
        assert_eq!(Batch::read(&list).unwrap().set(PF).add, set.add);
        let clash = r#"[{"id":1,"on":"vf0","direction":"to","action":"drop","tag":"pop"}]"#;
        for (text, part) in [
            ("vf0 to accept\nvf0 accept", "line 2"),
            ("{\"rule\":[]}", "unknown field"),
            (clash, "rule 1: what is dropped"),
        ] {
            let error = Batch::read(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_is_long_goes_in_parts() {
        assert_eq!(parts(&SetFlows::new(PF)), [SetFlows::new(PF)]);
        let text: String = (1..=2000)
            .map(|id| format!("vf0 to id {id} priority {id} src 2001:db8::{id} accept\n"))
            .collect();
        let mut batch = Batch::read(&text).unwrap();
        batch.replaces(&[]);
        let set = SetFlows { del: (0..3000).collect(), ..batch.set(PF) };
        let parts = parts(&set);
        assert!(parts.len() > 5);
        let mut whole = SetFlows::new(PF);
        for part in parts {
            assert!(serde_json::to_vec(&part).unwrap().len() < PART + 200);
            whole.del.extend(part.del);
            whole.clear.extend(part.clear);
            whole.add.extend(part.add);
            whole.defaults.extend(part.defaults);
        }
        assert_eq!(whole, set);
    }
}
