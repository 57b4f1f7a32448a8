//! Rules that clients of the control socket hold: the daemon leaves their processes alone, so that a trial can switch their memory.
//!
//! A hold is a client's connection with a lease ([`clients`](crate::clients)). The daemon keeps it nowhere else, so there is nothing to undo: a rule
//! is in force again when the connection ends, when the lease runs out, and when the daemon ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use superhue_sys::seqpacket::Credentials;

use crate::account::HoldAccount;
use crate::clients::Requester;
use crate::rules::Rule;

/// The rules that are held, by client.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeMap<u64, Hold>);

#[derive(Debug)]
struct Hold {
    /// The rule as it was at the first request.
    rule: Rule,
    /// The process that opened the connection.
    peer: Option<Credentials>,
    /// True after a reload has changed or removed it: it is not held any more.
    is_over: bool,
}

impl Holds {
    /// Holds the rule `name` for a client, or extends its hold; returns the rule. `processes` returns the number of processes of a rule.
    ///
    /// # Errors
    /// The reason why it is not held, and the remedy.
    pub(crate) fn take(
        &mut self,
        from: Requester,
        name: &str,
        rules: &[Rule],
        processes: impl FnOnce(&str) -> u64,
    ) -> Result<Rule, String> {
        if let Some(hold) = self.0.get(&from.client) {
            return hold.extended(name);
        }
        let rule = rules.iter().find(|rule| &*rule.name == name);
        let rule = rule.ok_or_else(|| {
            format!("there is no rule `{name}`: superhue ctl rules lists the rules in force")
        })?;
        if rule.placement.is_none() {
            return Err(format!(
                "rule `{name}` ({}) leaves its processes alone (pages = \"off\"): there is nothing to hold",
                rule.place
            ));
        }
        if let Some(other) = self.account().iter().find(|hold| hold.rule == name) {
            return Err(format!(
                "{} holds rule `{name}`: wait until that process ends, or end it, then try again",
                other.owner()
            ));
        }
        // Later, a service may be without processes for a moment, because it is started again.
        if processes(name) == 0 {
            return Err(format!(
                "rule `{name}` ({}) has no process now: superhue ctl why PID shows the rule of a process",
                rule.place
            ));
        }
        let hold = Hold {
            rule: rule.clone(),
            peer: from.peer,
            is_over: false,
        };
        hold.log(from.client, "held: the daemon leaves its processes alone");
        self.0.insert(from.client, hold);
        Ok(rule.clone())
    }

    /// Returns the rule that a client holds by this name.
    ///
    /// # Errors
    /// It holds none, or another one, or a reload has changed it.
    pub(crate) fn held_by(&self, client: u64, name: &str) -> Result<Rule, String> {
        let hold = self.0.get(&client);
        let hold = hold.ok_or_else(|| {
            format!("this connection does not hold rule `{name}`: only a trial that holds a rule has a result of it")
        })?;
        hold.extended(name)
    }

    /// Ends the hold of a client; returns false if it had none.
    pub(crate) fn end(&mut self, client: u64) -> bool {
        let hold = self.0.remove(&client);
        if let Some(hold) = hold.as_ref().filter(|hold| !hold.is_over) {
            hold.log(client, "not held any more");
        }
        hold.is_some()
    }

    /// Ends the holds of rules that are not the same among `rules`.
    pub(crate) fn follow(&mut self, rules: &[Rule]) {
        for (&client, hold) in self.0.iter_mut().filter(|(_, hold)| !hold.is_over) {
            match rules.iter().find(|rule| hold.is_of(rule)) {
                // It may stand at another place now.
                Some(rule) => hold.rule = rule.clone(),
                None => {
                    hold.log(client, "changed: not held any more");
                    hold.is_over = true;
                }
            }
        }
    }

    /// Returns the names of the rules that are held.
    pub(crate) fn names(&self) -> BTreeSet<Arc<str>> {
        let held = self.0.values().filter(|hold| !hold.is_over);
        held.map(|hold| hold.rule.name.clone()).collect()
    }

    /// Returns the account of the rules that are held.
    pub(crate) fn account(&self) -> Vec<HoldAccount> {
        let held = self.0.values().filter(|hold| !hold.is_over);
        held.map(Hold::account).collect()
    }
}

impl Hold {
    fn account(&self) -> HoldAccount {
        HoldAccount {
            rule: self.rule.name.to_string(),
            // The kernel reports 0 for a process of another PID namespace.
            pid: self.peer.map(|peer| peer.pid).filter(|&pid| pid != 0),
            uid: self.peer.map(|peer| peer.uid),
        }
    }

    /// Logs a change of the hold, with its owner.
    fn log(&self, client: u64, change: &str) {
        let HoldAccount { rule, pid, uid } = self.account();
        tracing::info!(rule, client, pid, uid, "{change}");
    }

    fn extended(&self, name: &str) -> Result<Rule, String> {
        let held = &self.rule.name;
        if **held != *name {
            return Err(format!(
                "this connection holds rule `{held}`: open another one for rule `{name}`"
            ));
        }
        match self.is_over {
            true => Err(format!(
                "a reload has changed or removed rule `{name}` meanwhile: the daemon acts by the rules in force"
            )),
            false => Ok(self.rule.clone()),
        }
    }

    /// Returns true if `rule` is the same, wherever it stands.
    fn is_of(&self, rule: &Rule) -> bool {
        self.rule.name == rule.name
            && self.rule.conditions == rule.conditions
            && self.rule.placement == rule.placement
    }
}

#[cfg(test)]
mod tests;
