//! Where a service's settings come from: a TOML file, then the environment, then flags, each over the one before.
//!
//! Decides which source wins, what is a mistake, and how mistakes are told: all of them at once. What the settings
//! are and mean is decided in `services.rs`.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::Serialize;

use crate::failure::Failure;

/// One setting of a service.
pub(crate) struct Setting {
    /// Name in the file; upper case after the prefix in the environment; with dashes as a flag.
    pub(crate) name: &'static str,
    /// What is used if nobody sets it.
    pub(crate) default: Option<&'static str>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(String),
    Environment(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {path}"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The settings of one service, gathered and not yet understood.
#[derive(Debug)]
pub(crate) struct Values {
    values: BTreeMap<&'static str, (String, Origin)>,
    names: Vec<&'static str>,
    mistakes: Vec<String>,
}

/// Gathers `settings`. Environment variables are named `prefix` and the setting's name; ones that name no setting
/// are ignored, because container platforms make such variables from the names of services.
pub(crate) fn gather(
    settings: &[Setting],
    file: Option<&Path>,
    prefix: &str,
    environment: impl Fn(&str) -> Option<std::ffi::OsString>,
    flags: &[(&'static str, Option<String>)],
) -> Values {
    let mut values = Values {
        values: BTreeMap::new(),
        names: settings.iter().map(|setting| setting.name).collect(),
        mistakes: Vec::new(),
    };
    for Setting { name, default } in settings {
        if let Some(default) = default {
            values.set(name, (*default).to_owned(), Origin::Default);
        }
    }
    if let Some(path) = file {
        values.read_file(path);
    }
    for name in values.names.clone() {
        let variable = format!("{prefix}{}", name.to_uppercase());
        match environment(&variable).map(std::ffi::OsString::into_string) {
            Some(Ok(text)) => values.set(name, text, Origin::Environment(variable)),
            Some(Err(_)) => values.mistakes.push(format!("environment variable {variable} is not UTF-8")),
            None => {}
        }
    }
    for (name, text) in flags {
        if let Some(text) = text {
            values.set(name, text.clone(), Origin::Flag(format!("--{}", name.replace('_', "-"))));
        }
    }
    values
}

impl Values {
    fn set(&mut self, name: &'static str, text: String, origin: Origin) {
        self.values.insert(name, (text, origin));
    }

    fn read_file(&mut self, path: &Path) {
        let shown = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return self.mistakes.push(format!("cannot read {shown}: {error}")),
        };
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => return self.mistakes.push(format!("{shown} is not TOML: {error}")),
        };
        for (key, value) in table {
            let Some(name) = self.names.iter().find(|name| **name == key) else {
                let known = self.names.join(", ");
                self.mistakes.push(format!("{shown}: unknown setting {key:?}: the settings are {known}"));
                continue;
            };
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(yes) => yes.to_string(),
                other => {
                    let given = other.type_str();
                    self.mistakes.push(format!(
                        "{shown}: {key} is of type {given}: write a string, a number, true or false"
                    ));
                    continue;
                }
            };
            self.set(name, text, Origin::File(shown.clone()));
        }
    }

    /// The value of a setting that may be left out; none also if it is a mistake, which is then remembered.
    pub(crate) fn optional<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, origin) = self.values.get(name)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(mistake) => {
                self.mistakes.push(format!("{name} ({origin}): {mistake}"));
                None
            }
        }
    }

    /// The value of a setting that has to be there; none is a mistake, which is remembered.
    pub(crate) fn required<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if !self.values.contains_key(name) {
            let flag = name.replace('_', "-");
            self.mistakes.push(format!("{name} is not set: give --{flag}, or {name} in the file"));
        }
        self.optional(name, parse)
    }

    /// All mistakes at once, if there are any.
    pub(crate) fn checked(&self) -> Result<(), Failure> {
        match self.mistakes.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::usage(one.clone())),
            many => {
                let count = many.len();
                Err(Failure::usage(format!("{count} mistakes in the settings:\n  {}", many.join("\n  "))))
            }
        }
    }

    /// The settings and where each comes from, as a TOML file that would set them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for row in self.rows() {
            match row.value {
                Some(value) => {
                    let quoted = toml::Value::String(value);
                    text.push_str(&format!("{} = {quoted}  # {}\n", row.name, row.origin));
                }
                None => text.push_str(&format!("# {} is not set\n", row.name)),
            }
        }
        text
    }

    /// The same for JSON.
    pub(crate) fn document(&self) -> Document {
        Document { settings: self.rows() }
    }

    fn rows(&self) -> Vec<Row> {
        let row = |name: &&'static str| match self.values.get(name) {
            Some((value, origin)) => Row { name, value: Some(value.clone()), origin: origin.to_string() },
            None => Row { name, value: None, origin: String::new() },
        };
        self.names.iter().map(row).collect()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Document {
    settings: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    value: Option<String>,
    origin: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: [Setting; 3] = [
        Setting { name: "disk", default: None },
        Setting { name: "size", default: None },
        Setting { name: "start_patience", default: Some("5s") },
    ];

    fn values(file: &str, environment: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Values {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, file).unwrap();
        let flags: Vec<_> = flags.iter().map(|(name, value)| (*name, Some((*value).to_owned()))).collect();
        let find =
            |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
        gather(&SETTINGS, Some(&path), "STRIPESET_AGENT_", find, &flags)
    }

    fn text(values: &mut Values, name: &str) -> Option<String> {
        values.optional(name, |text| Ok(text.to_owned()))
    }

    #[test]
    fn flags_go_over_the_environment_and_that_over_the_file() {
        let file = "disk = 'file'\nsize = 4096\nstart_patience = '1s'";
        let environment = [("STRIPESET_AGENT_DISK", "environment"), ("STRIPESET_AGENT_SIZE", "1MiB")];
        let mut all = values(file, &environment, &[("disk", "flag")]);
        assert_eq!(text(&mut all, "disk").as_deref(), Some("flag"));
        assert_eq!(text(&mut all, "size").as_deref(), Some("1MiB"));
        assert_eq!(text(&mut all, "start_patience").as_deref(), Some("1s"));
        let shown = all.text();
        assert!(shown.contains("disk = \"flag\"  # flag --disk\n"), "{shown}");
        assert!(shown.contains("size = \"1MiB\"  # environment STRIPESET_AGENT_SIZE\n"), "{shown}");
        assert!(shown.contains("start_patience = \"1s\"  # file "), "{shown}");
        all.checked().unwrap();
    }

    #[test]
    fn what_is_printed_can_be_read_back() {
        let all = values("disk = 'a \"b\" \\ c'", &[], &[]);
        let mut again = values(&all.text(), &[], &[]);
        assert_eq!(text(&mut again, "disk").as_deref(), Some("a \"b\" \\ c"));
        assert!(all.text().contains("# size is not set"));
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let mut all = values("dsik = 'a'\nsize = [1]", &[], &[("start_patience", "soon")]);
        assert_eq!(all.required("disk", |text| Ok(text.to_owned())), None);
        assert_eq!(all.optional("start_patience", crate::quantity::duration), None);
        let message = all.checked().unwrap_err().message;
        for part in [
            "4 mistakes",
            "unknown setting \"dsik\"",
            "size is of type array",
            "disk is not set",
            "flag --start-patience",
        ] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }

    #[test]
    fn variables_of_a_container_platform_are_no_mistakes() {
        let environment =
            [("STRIPESET_AGENT_SERVICE_HOST", "10.0.0.1"), ("STRIPESET_AGENT_PORT", "tcp://10.0.0.1:1")];
        values("disk = 'a'", &environment, &[]).checked().unwrap();
    }
}
