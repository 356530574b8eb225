"""The plots: beats in order, each beat a choice of sentences.

Slots: hero, kind (fox, baker), he/him/his; helper, helperkind, he2/him2/his2; thing, adj, place, and the words
that `story.new_cast` fixes for one story.  Other slots are drawn anew each time.
"""

from dataclasses import dataclass

Beat = tuple[str, ...]

OPENING: Beat = (
    "Once upon a time, a {trait} {kind} named {hero} lived in a [{size} |]{place}.",
    "In a {place} far away, there lived a {trait} {kind} called {hero}.",
    "There was once a {kind} whose name was {hero}, and {he} lived near a {place}.",
    "{hero} was a {trait} {kind} who lived beside a {place}.",
    "Long ago, near a quiet {place}, lived a {kind} named {hero}.",
    "At the edge of a {place} stood a {size} house, and in it lived {hero}, a {trait} {kind}.",
    "Everybody in the {place} knew {hero}, the {trait} {kind}.",
)
OWNS: Beat = (
    "{He} had a {adj} {thing} and loved it more than anything.",
    "{His} dearest treasure was a {adj} {thing}.",
    "Wherever {he} went, {he} carried a {adj} {thing}.",
    "A {adj} {thing} hung above {his} bed, a gift from {his} [grandmother|uncle|aunt|mother|father|sister].",
    "{He} owned only one precious thing: a {adj} {thing}.",
    "Every [morning|evening|night] {he} polished {his} {adj} {thing}.",
)
HABIT: Beat = (
    "{He} wore a {colour} {clothes} and smelled of {smell}.",
    "The air smelled of {smell} and {smell2}, and there were {nature} everywhere.",
    "The house stood {distance}, and there were {nature} all around.",
    "Every day {he} {habit}.",
    "Every day {he} {habit} and {habit2}.",
    "{He} liked {hobby} and [warm |fresh |sweet |]{food}.",
    "Most days were filled with {hobby}, {food} and a long nap.",
    "{He} was good at {hobby}, but not at waiting.",
    "In {season}, when the days were {weather}, {he} loved {hobby}.",
    "{He} ate {food} for breakfast and dreamed of far lands.",
    "The {flower} bloomed by {his} door, and the {tree} gave shade.",
    "Nobody was better at {hobby} than {hero}.",
    "{His} neighbour, a {trait2} {job}, often came for {food}.",
)
MEETS: Beat = (
    "Then a {helperkind} named {helper} came along.",
    "Just then {helper}, a {trait2} {helperkind}, [passed|walked] by.",
    "At that moment {he} met {helper} the {helperkind}.",
    "A {trait2} {helperkind} heard this and came closer. [It was|The name was] {helper}.",
    "Near the {tree} sat {helper}, a {trait2} old {helperkind}.",
)
OFFER: Beat = (
    '"Can I help you?" {said} {helper}.',
    '"Do not give up," {said} {helper}. "Two heads are better than one."',
    '"Let us try together," {helper} said {adverb}.',
    '"I know what to do," {helper} {said}.',
    '"Tell me what is wrong," {helper} said {adverb}.',
    '"Why are you so {feeling}?" asked {helper}.',
)
THANKS: Beat = (
    '"Thank you, {helper}!" {said} {hero}.',
    '"I will never forget this," {said} {hero} {adverb}.',
    "{hero} hugged {helper} {adverb}.",
    "{hero} thanked {helper} and shared some {food} with {him2}.",
    "To say thanks, {hero} cooked {food} for {helper}.",
)
HAPPY: Beat = (
    "From that day on, {hero} and {helper} were the best of friends.",
    "That night {hero} fell asleep with a smile.",
    "Everyone in the {place} [danced|sang|laughed] until the moon was high.",
    "And they lived happily for many years.",
    "They ate {food} together and laughed until the stars came out.",
    "{hero} was {feel_good} for the rest of the {season}.",
)
SAD: Beat = (
    "But {helper} had to leave the {place} the next day, and {hero} cried for a long time.",
    "Soon the cold came, the {thing} was gone for ever, and {hero} was sad and alone.",
    "In the end {hero} stood alone by the {place}, and the rain fell on {his} face.",
    "But it was too late, and {hero} never saw {helper} again.",
    "{hero} went home alone, and nobody ever asked about the {thing} again.",
)
MORAL: Beat = (
    "So {hero} learned that {lesson}.",
    "Since then {hero} has known that {lesson}.",
    "The moral is that {lesson}.",
    "And that is how {hero} learned that {lesson}.",
    '{hero} told everyone: "Remember, {lesson}."',
)


@dataclass(frozen=True, slots=True)
class Plot:
    """`plan` says the plot in a few words; `middle` are the paragraphs between the opening and the end."""

    plan: str
    lessons: tuple[str, ...]
    middle: tuple[tuple[Beat, ...], ...]

    def paragraphs(self, ending: str) -> tuple[tuple[Beat, ...], ...]:
        last: tuple[Beat, ...] = (SAD,) if ending == "sad" else (HAPPY, MORAL)
        return ((OPENING, OWNS, HABIT), *self.middle, last)


LOST = Plot(
    "Problem: the {thing} is lost. Helper: {helper} the {helperkind}. It is found {spot2}.",
    (
        "what is lost can be found again",
        "calm thinking solves hard problems",
        "it is good to ask for help",
        "four eyes see more than two",
    ),
    (
        (
            (
                "{when}, the {thing} was gone.",
                "{when}, {hero} woke up and could not find the {thing}.",
                "{when}, {he} [noticed|saw] that the {thing} had vanished.",
            ),
            (
                "{He} looked {spot}, but there was [nothing|only dust|only a {animal}].",
                "{hero} searched {spot} and found only [a {adj2} {other}|old {food}].",
                "First {he} {went} home and looked {spot}, but it was not there.",
            ),
            (
                '"Where can it be?" {he} {said}.',
                '"Oh no, my {thing}!" {said} {hero}.',
                "{hero} sat down and felt {feel_bad}.",
            ),
        ),
        (
            MEETS,
            OFFER,
            (
                "Together they looked {spot2}.",
                "{helper} {went} ahead and pointed {spot2}.",
                '"Think," {said} {helper}. "Where were you yesterday?" Then {hero} remembered.',
            ),
            (
                "And there, {spot2}, lay the {adj} {thing}!",
                "There it was, {spot2}, wet but whole: the {thing}!",
                "The {thing} was {spot2} the whole time.",
            ),
            THANKS,
        ),
    ),
)
FEAR = Plot(
    "Problem: {hero} is afraid of {fear}. Helper: {helper} the {helperkind}. The {thing} gives courage.",
    (
        "courage grows when you use it",
        "being brave does not mean being without fear",
        "small steps lead far",
        "fear is smaller when it is shared",
    ),
    (
        (
            (
                "But {hero} had a secret: {he} was afraid of {fear}.",
                "There was only one problem. {hero} feared {fear}.",
                "{hero} was {trait}, but {he} trembled when {he} thought of {fear}.",
            ),
            (
                "{when}, {he} [ran away|hid {spot}|closed {his} eyes] and would not come out.",
                "{when}, {his} friends laughed at {him}, and {he} felt {feel_bad}.",
                "{when}, {he} tried to be brave, but {his} knees shook.",
            ),
        ),
        (
            MEETS,
            OFFER,
            (
                '"I am afraid of {fear}," {hero} said {adverb}.',
                "{hero} told {him2} everything about {fear}.",
            ),
            (
                '"Hold your {thing} and count to [three|five|ten]," {said} {helper}.',
                '"Being brave means to be afraid and still go on," {said} {helper}. "Take your {thing} with you."',
                '"I was afraid too," {helper} {said}. "Hold my hand, and hold your {thing}."',
            ),
            (
                "{hero} took a deep breath and tried it, step by step.",
                "So {hero} held the {thing} and went on {adverb}.",
                "The first time {he} failed, the second time too, but the third time {he} did it.",
            ),
            (
                "The fear grew smaller and smaller.",
                "Soon {fear} did not seem so terrible any more.",
                '"I did it!" {said} {hero}.',
            ),
        ),
    ),
)
RESCUE = Plot(
    "Problem: {helper} the {helperkind} is stuck in {trap}. {hero} pulls {him2} out. Reward: friendship.",
    (
        "nobody is too small to help",
        "a good deed is never wasted",
        "together we are stronger",
        "a clever idea is better than force",
    ),
    (
        (
            (
                "{when}, {he} heard a cry for help.",
                "{when}, a weak voice called from the {place}.",
                "{when}, {hero} took the {thing} and {went} to the {place}.",
            ),
            (
                "{helper}, a {size} {helperkind}, was stuck in {trap}.",
                "A {helperkind} named {helper} had fallen into {trap}.",
                "In {trap} sat {helper} the {helperkind} and could not get out.",
            ),
            (
                '"Please help me!" {said} {helper}.',
                '"I have been here since [dawn|noon|yesterday]," {said} {helper}.',
            ),
        ),
        (
            (
                "{hero} pulled {adverb}, but {helper} did not move.",
                "First {hero} tried with {tool}, but it was too short.",
                "{hero} pushed and pulled, but nothing happened.",
            ),
            (
                "Then {he} had an idea and fetched {tool}.",
                "So {he} {went} home and came back with {tool}.",
                "Then {he} saw {tool} and smiled.",
            ),
            (
                "One, two, three! {helper} was free.",
                "With a loud pop, {helper} came out.",
                "Slowly, very slowly, {helper} climbed out.",
            ),
            (
                '"You saved me," {said} {helper}. "How can I thank you?"',
                "{helper} shook the mud off and laughed.",
            ),
            (
                "{hero} gave {him2} {food} and showed {him2} the {thing}.",
                '"Come and see my {thing}," {said} {hero}.',
            ),
        ),
    ),
)
BROKEN = Plot(
    "Problem: {hero} breaks the {thing}, which belongs to {helper} the {helperkind}. {hero} tells the truth.",
    (
        "honesty is the best way",
        "it is never too late to say sorry",
        "every mistake can teach us something",
        "the truth makes the heart light",
    ),
    (
        (
            (
                "The {thing} was so fine that {helper} the {helperkind} [asked to borrow it|wanted half of it].",
                "In truth, half of the {thing} belonged to {helper} the {helperkind}.",
            ),
            (
                "{when}, {hero} dropped it, and it broke.",
                "{when}, {he} played too wildly, and the {thing} cracked.",
                "{when}, {hero} slipped, and the {thing} fell to the ground with a crash.",
            ),
            (
                "{He} wanted to hide the pieces {spot}.",
                '"Maybe nobody will see it," {he} thought.',
                "{He} felt {feel_bad} and did not know what to do.",
            ),
        ),
        (
            ("But {he} could not sleep that night.", "But {his} heart was heavy as a stone."),
            (
                "In the morning {he} {went} to {helper} and told {him2} the truth.",
                'So {he} went to {helper}. "I broke it," {he} {said}. "I am sorry."',
            ),
            (
                "{helper} was quiet for a moment, and then {he2} smiled.",
                '"Thank you for being honest," {said} {helper}.',
            ),
            (
                "Together they mended the {thing} with [glue|string|thread|wax] and patience.",
                "They worked all day, and the {thing} was almost as good as new.",
            ),
        ),
    ),
)
SHARE = Plot(
    "Problem: {helper} the {helperkind} is hungry. {hero} shares {food}. Later {helper} helps {hero}.",
    (
        "kindness always comes back",
        "sharing makes everyone richer",
        "a good deed is never forgotten",
        "one good turn deserves another",
    ),
    (
        (
            (
                "That {season} there was little to eat, and {hero} had only some {food}.",
                "{when}, {hero} packed {food} and the {thing} and set out.",
            ),
            (
                "On the way {he} met {helper}, a hungry {helperkind}.",
                "At the gate stood {helper}, a thin {helperkind}.",
            ),
            (
                '"I have not eaten for [two|three] days," {said} {helper}.',
                '"Could you spare a bite?" {helper} said {adverb}.',
            ),
            (
                "{hero} thought of {his} own empty belly, but then {he} gave {him2} half.",
                '"Take this," {said} {hero}, and shared the {food}.',
            ),
        ),
        (
            (
                "A week later a storm came, and {hero} lost {his} way and {his} {thing}.",
                "Some days later the river rose and carried the {thing} away.",
            ),
            (
                'Suddenly a voice {said}: "I remember you!" It was {helper}.',
                "Who came through the rain? It was {helper}!",
            ),
            (
                "{helper} led {him} home and brought back the {thing}.",
                "{helper} jumped into the water and saved the {thing}.",
            ),
            THANKS,
        ),
    ),
)
RACE = Plot(
    "Problem: {hero} boasts and races against {helper} the {helperkind}. {helper} wins by patience.",
    (
        "pride comes before a fall",
        "slow and steady wins the race",
        "patience is stronger than speed",
        "it is better to run than to boast",
    ),
    (
        (
            (
                '"I am the fastest in the whole {place}," {hero} said {adverb}.',
                "{hero} boasted every day about how quick {he} was.",
            ),
            (
                '"Then let us race," {said} {helper} the {helperkind}.',
                '{helper}, a slow {helperkind}, only smiled. "Shall we race?" {he2} asked.',
            ),
            ("The prize was the {adj} {thing}.", "The winner would keep the {thing}."),
        ),
        (
            ("{when}, all the animals came to watch.", "A {job} waved a {colour} flag, and off they went."),
            (
                "{hero} ran ahead and soon lay down for a nap under the {tree}.",
                "{hero} was so sure that {he} stopped to eat {food}.",
            ),
            ("{helper} walked on, step by step.", "{helper} went on {adverb} and did not stop once."),
            (
                "When {hero} looked up, {helper} had already won.",
                "At the last moment {hero} ran, but {helper} crossed the line first.",
            ),
            (
                '"Well done," {said} {hero}, and handed over the {thing}.',
                "{hero} blushed and shook {his2} hand.",
            ),
        ),
    ),
)
LONELY = Plot(
    "Problem: {hero} is lonely. The {thing} brings {helper} the {helperkind}. They become friends.",
    (
        "home is where your friends are",
        "a smile costs nothing",
        "a friend may live just around the corner",
        "one kind word can open a door",
    ),
    (
        (
            ("But {he} had nobody to talk to.", "Yet {hero} was lonely, for no one ever came to visit."),
            (
                "{when}, {he} sat by the window with the {thing} and sighed.",
                "{when}, {he} took the {thing} and {went} out to look for a friend.",
            ),
            ("{He} asked a {animal}, but it was too busy.", "{He} asked the {job}, but got no answer."),
        ),
        (
            (
                "Near the {place} {he} met {helper}, a {trait2} {helperkind}.",
                "Then somebody knocked. It was {helper}, a {helperkind} from the other side of the {place}.",
            ),
            (
                '"What a {adj} {thing}!" {said} {helper}. "May I look at it?"',
                '"I am lonely too," {said} {helper}. "Is that your {thing}?"',
            ),
            (
                "They talked about {hobby}, about {food} and about the stars.",
                "Soon they were {hobby} together as if they had always known each other.",
            ),
            (
                '"Will you come again tomorrow?" asked {hero}. "Of course," {said} {helper}.',
                '"Come back soon," {said} {hero}. And {helper} did.',
            ),
        ),
    ),
)
BUILD = Plot(
    "Problem: {hero} wants to build a {craft} and fails twice. Helper: {helper} the {helperkind}.",
    (
        "good work takes time",
        "haste makes waste",
        "failing twice is no reason to stop",
        "two heads are better than one",
    ),
    (
        (
            (
                "{when}, {he} decided to build a {craft}.",
                '"I will build a {craft}," {he} {said} one day, "with room for my {thing}."',
            ),
            (
                "The first {craft} fell apart at once.",
                "The first try was too [small|heavy|weak|crooked], and it broke.",
            ),
            (
                "The second one lasted an hour, and then the wind took it.",
                "The second was better, but a {animal} sat on it.",
            ),
            ("{hero} was {feel_bad} and kicked a stone.", '"I cannot do it," {he} said {adverb}.'),
        ),
        (
            MEETS,
            (
                '"Measure twice, cut once," {said} {helper}.',
                '"Use wood from the {tree}," {said} {helper}. "It is strong."',
            ),
            (
                "They worked from morning to evening, with {tool} and much patience.",
                "{helper} held the boards while {hero} hammered.",
            ),
            ("At sunset the {craft} was ready, and it was perfect.", "This time the {craft} stood firm."),
            (
                "On top of it {hero} placed the {thing}.",
                "They decorated it with the {thing} and some {flower} petals.",
            ),
        ),
    ),
)
GIFT = Plot(
    "Problem: {hero} needs a gift for {helper} the {helperkind}. The best gift is the {thing}.",
    (
        "the best gifts come from the heart",
        "giving is sweeter than getting",
        "old friends are worth more than gold",
        "a gift need not cost a coin",
    ),
    (
        (
            (
                "{when}, it was the birthday of {helper}, a {trait2} {helperkind}.",
                "Soon it would be the birthday of {his} friend {helper} the {helperkind}.",
            ),
            (
                "But {hero} had no money for a gift.",
                "{hero} {went} to the market, but everything was too expensive.",
            ),
            (
                "{He} offered to work for the {job}, but was sent away.",
                "{He} looked at {food}, at hats and at books, but nothing seemed right.",
            ),
        ),
        (
            ("Then {he} looked at {his} own {adj} {thing}.", "At home {his} eyes fell on the {thing}."),
            (
                "It was hard to give it away, but {he} wrapped it in {colour} paper.",
                "{He} cleaned it, tied a {colour} ribbon around it and {went} to the party.",
            ),
            (
                "When {helper} opened it, {he2} was speechless.",
                '"For me?" {said} {helper}, and {his2} eyes shone.',
            ),
            (
                '"It is the best gift of all," {helper} {said}, "because it comes from you."',
                '"We will share it," {said} {helper}.',
            ),
        ),
    ),
)
WAY = Plot(
    "Problem: {hero} loses the way in a storm. Helper: {helper} the {helperkind} with the {thing}.",
    (
        "even a dark night ends in morning",
        "one should look at the sky before a walk",
        "a true friend helps in hard times",
        "it is good to know the way home",
    ),
    (
        (
            (
                "{when}, {hero} {went} far beyond the {place} to collect {food}.",
                "{when}, {he} went for a long walk with the {thing}.",
            ),
            (
                "Suddenly [fog|snow|rain|night] fell, and {he} could not see the path.",
                "The sky turned black and a storm began.",
            ),
            (
                "{He} turned left, then right, and came back to the same {tree}.",
                "{He} called for help, but only the wind answered.",
            ),
            ("{hero} was cold and {feel_bad}.", '"How will I ever get home?" {he} {said}.'),
        ),
        (
            (
                "Then {he} saw a small light. It was {helper} the {helperkind}.",
                "Far away {he} heard a bell. {helper}, a {trait2} {helperkind}, was ringing it.",
            ),
            (
                '"Follow me," {said} {helper}. "I know every stone here."',
                '"Hold on to my tail and do not let go," {helper} {said}.',
            ),
            (
                "They walked past the {place2}, over a bridge and up a hill.",
                "Step by step they went, and the {thing} showed them the way.",
            ),
            ("At last {hero} saw {his} own house.", "At dawn they stood before {his} door."),
            THANKS,
        ),
    ),
)
LEARN = Plot(
    "Problem: {hero} wants to learn {skill}. Helper: {helper} the {helperkind}. Practice helps.",
    (
        "practice makes things easier",
        "nobody is born a master",
        "small steps lead far",
        "it is never too late to learn",
    ),
    (
        (
            (
                "More than anything, {hero} wanted to learn {skill}.",
                "{when}, {he} saw a {job} and wished to learn {skill} too.",
            ),
            (
                "{He} tried it once and failed.",
                "On the first day it went very badly.",
                "{He} tried it alone, and everyone laughed.",
            ),
            (
                '"It is too hard for a {kind}," {he} {said}.',
                "{He} threw the {thing} into a corner and felt {feel_bad}.",
            ),
        ),
        (
            MEETS,
            (
                '"Nobody is born a master," {said} {helper}. "Practise a little every day."',
                '"I will teach you," {said} {helper}, "if you lend me your {thing}."',
            ),
            (
                "So they practised every morning near the {place}.",
                "Day after day {hero} practised, in rain and in sun.",
            ),
            (
                "After [one week|two weeks|a month] it went a little better.",
                "On the [fifth|sixth|tenth|twentieth] day something changed.",
            ),
            ("And then, {adverb}, {hero} did it!", '"Look!" {said} {hero}. "I can do it!"'),
        ),
    ),
)
MYSTERY = Plot(
    "Problem: a strange {sound} at night. It is only {helper} the {helperkind} with the {thing}.",
    (
        "many things are less frightening in the light",
        "curiosity opens many doors",
        "one should look before being afraid",
        "a strange sound can be a new friend",
    ),
    (
        (
            ("{when}, {hero} heard a strange {sound}.", "One night there was a {sound} at the window."),
            ("It came from {spot}.", "It stopped, and then it came again, {spot}."),
            (
                '"Is it a ghost?" {he} {said}.',
                "{He} pulled the blanket over {his} head.",
                "{hero} felt {feel_bad}, but also curious.",
            ),
        ),
        (
            ("{hero} lit a candle and {went} {adverb} to the door.", "At last {he} took {tool} and looked."),
            (
                "There sat {helper}, a {size} {helperkind}, with the {thing} in {his2} paws.",
                "It was only {helper}, a {trait2} {helperkind}, who played with the {thing}.",
            ),
            (
                '"I am sorry," {said} {helper}. "I was cold and wanted to come in."',
                '"Please do not be angry," {helper} said {adverb}. "It is so pretty."',
            ),
            (
                "{hero} laughed and made [tea|cocoa|soup] for both.",
                '"Next time, just knock," {said} {hero}, and they both laughed.',
            ),
        ),
    ),
)
GREED = Plot(
    "Problem: {hero} wants more and more {food}. {helper} the {helperkind} warns. {hero} learns to share.",
    (
        "greed leaves you with empty hands",
        "one should take only what one needs",
        "sharing is better than having",
        "enough is as good as a feast",
    ),
    (
        (
            (
                "{when}, {hero} found a {place2} full of {food}.",
                "{when}, {he} discovered a cellar with heaps of {food}.",
            ),
            (
                '"All of it is mine!" {he} said {adverb}.',
                "{He} filled one sack, then a second, then a third.",
            ),
            (
                '"Take only what you need," {said} {helper} the {helperkind}.',
                "{helper}, a {trait2} {helperkind}, asked for a little, but {hero} said no.",
            ),
        ),
        (
            (
                "But the sacks were too heavy, and on the bridge they tore.",
                "But on the way home the cart broke.",
            ),
            (
                "Everything fell into the [river|mud|ditch], even the {thing}.",
                "Everything was lost, the {food} and the {thing} too.",
            ),
            ("{hero} sat down and wept.", '"I have been a fool," {he} {said}.'),
            (
                "{helper} came, gave {him} some {food}, and fished out the {thing}.",
                "Then {helper} shared {his2} own supper and found the {thing} again.",
            ),
            THANKS,
        ),
    ),
)
GARDEN = Plot(
    "Problem: {hero} plants a {plant} and must wait. Helper: {helper} the {helperkind}. The {plant} grows.",
    (
        "good things need time",
        "patience brings the best harvest",
        "what you care for will grow",
        "waiting is easier with a friend",
    ),
    (
        (
            (
                "In {season} {he} planted a {plant} next to the {tree}.",
                "{when}, {hero} found a seed inside the {thing} and planted it.",
            ),
            (
                "Every day {he} watered it and waited.",
                "{He} looked at the earth every hour, but nothing grew.",
            ),
            (
                '"Grow!" {he} said {adverb}. But the earth stayed brown.',
                "{hero} became {feel_bad} and wanted to dig it up.",
            ),
        ),
        (
            MEETS,
            ('"Good things need time," {said} {helper}.', '"Sing to it and wait," {helper} {said}.'),
            (
                "So they sat together, told stories and waited.",
                "They put the {thing} beside it to scare the crows away.",
            ),
            (
                "After [seven|ten|twelve|twenty] days a green leaf came out.",
                "One {weather} morning a tiny leaf looked out of the ground.",
            ),
            (
                "In the end it was the biggest {plant} in the {place}, and there was enough for all.",
                "By autumn they had the finest {plant} that anyone had ever seen.",
            ),
        ),
    ),
)

PLOTS = (LOST, FEAR, RESCUE, BROKEN, SHARE, RACE, LONELY, BUILD, GIFT, WAY, LEARN, MYSTERY, GREED, GARDEN)

# Stories in exactly three sentences; each beat is one sentence and names every slot a request may ask for.
_ONE: Beat = (
    "{hero}, a {trait} {kind} from the {place}, had a {adj} {thing}.",
    "In a {place} lived {hero} the {kind} with a {adj} {thing}.",
    "{when}, a {trait} {kind} named {hero} found a {adj} {thing} in the {place}.",
)
THREE: tuple[tuple[Beat, ...], ...] = (
    (
        _ONE,
        (
            "{when}, the {thing} was lost, and {helper} the {helperkind} helped to look for it.",
            "One day it fell into {trap}, but {helper} the {helperkind} pulled it out.",
            "One night {helper} the {helperkind} came in from the cold, and {hero} shared {food} with {him2}.",
            "{helper} the {helperkind} wanted it too, so they decided to share it.",
            "With it {he} helped {helper} the {helperkind}, who was stuck in {trap}.",
        ),
        (
            "In the end they became friends and shared everything.",
            "Since that day {hero} and {helper} have helped each other.",
            "{hero} thanked {helper}, and they danced until the moon was high.",
            "They ate {food} together, and both were {feel_good}.",
            "From then on {hero} and {helper} were never lonely again.",
        ),
    ),
)
