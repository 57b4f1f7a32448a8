//! Options whose value is one of several names: help, manual pages and completions list them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Takes one of the names, each given with what it stands for and what it means.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    known: impl IntoIterator<Item = (T, &'static str, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let known: Vec<_> = known.into_iter().collect();
    let values: Vec<PossibleValue> = known
        .iter()
        .map(|&(_, name, meaning)| PossibleValue::new(name).help(meaning))
        .collect();
    PossibleValuesParser::new(values).try_map(move |given| {
        let found = known.iter().find(|(_, name, _)| *name == given);
        found
            .map(|(value, ..)| *value)
            .ok_or_else(|| format!("there is no `{given}`"))
    })
}
